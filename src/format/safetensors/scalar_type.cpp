#include "format/scalar_type.h"

#include <algorithm>
#include <array>

namespace muster::format {
namespace {

constexpr ScalarType number(int value) { return static_cast<ScalarType>(value); }

using Element = ElementType;
constexpr std::array kScalarTypes{
    DtypeInfo{number(0), "uint8", 1, "ByteStorage", Element::u8},
    DtypeInfo{number(1), "int8", 1, "CharStorage", Element::i8},
    DtypeInfo{number(2), "int16", 2, "ShortStorage", Element::i16},
    DtypeInfo{number(3), "int32", 4, "IntStorage", Element::i32},
    DtypeInfo{number(4), "int64", 8, "LongStorage", Element::i64},
    DtypeInfo{number(5), "float16", 2, "HalfStorage", Element::f16},
    DtypeInfo{number(6), "float32", 4, "FloatStorage", Element::f32},
    DtypeInfo{number(7), "float64", 8, "DoubleStorage", Element::f64},
    DtypeInfo{number(8), "complex32", 4, "", std::nullopt},
    DtypeInfo{number(9), "complex64", 8, "ComplexFloatStorage", Element::c64},
    DtypeInfo{number(10), "complex128", 16, "ComplexDoubleStorage", std::nullopt},
    DtypeInfo{number(11), "bool", 1, "BoolStorage", Element::boolean},
    DtypeInfo{number(15), "bfloat16", 2, "BFloat16Storage", Element::bf16},
    DtypeInfo{number(18), "bits1x8", 1, "", std::nullopt},
    DtypeInfo{number(19), "bits2x4", 1, "", std::nullopt},
    DtypeInfo{number(20), "bits4x2", 1, "", std::nullopt},
    DtypeInfo{number(21), "bits8", 1, "", std::nullopt},
    DtypeInfo{number(22), "bits16", 2, "", std::nullopt},
    DtypeInfo{number(23), "float8_e5m2", 1, "", Element::f8_e5m2},
    DtypeInfo{number(24), "float8_e4m3fn", 1, "", Element::f8_e4m3},
    DtypeInfo{number(25), "float8_e5m2fnuz", 1, "", Element::f8_e5m2fnuz},
    DtypeInfo{number(26), "float8_e4m3fnuz", 1, "", Element::f8_e4m3fnuz},
    DtypeInfo{number(27), "uint16", 2, "", Element::u16},
    DtypeInfo{number(28), "uint32", 4, "", Element::u32},
    DtypeInfo{number(29), "uint64", 8, "", Element::u64},
    DtypeInfo{number(44), "float8_e8m0fnu", 1, "", Element::f8_e8m0},
    DtypeInfo{number(45), "float4_e2m1fn_x2", 1, "", Element::f4},
};

struct ScalarAlias {
  std::string_view alias;
  std::string_view name;
};
constexpr std::array<ScalarAlias, 8> kScalarAliases{{{"half", "float16"},
                                                     {"float", "float32"},
                                                     {"double", "float64"},
                                                     {"short", "int16"},
                                                     {"int", "int32"},
                                                     {"long", "int64"},
                                                     {"cfloat", "complex64"},
                                                     {"cdouble", "complex128"}}};

template <class Matches>
const DtypeInfo* find_row(Matches matches) {
  const auto found = std::find_if(kScalarTypes.begin(), kScalarTypes.end(), matches);
  return found == kScalarTypes.end() ? nullptr : &*found;
}

}  // namespace

const DtypeInfo* find_scalar_type(ScalarType type) {
  return find_row([&](const DtypeInfo& row) { return row.type == type; });
}

const DtypeInfo* find_scalar_type(std::string_view name) {
  for (const auto& [alias, full] : kScalarAliases)
    if (alias == name) name = full;
  return find_row([&](const DtypeInfo& row) { return row.name == name; });
}

const DtypeInfo* find_storage_type(std::string_view storage) {
  if (storage.empty()) return nullptr;
  return find_row([&](const DtypeInfo& row) { return row.storage == storage; });
}

const DtypeInfo* find_scalar_type(ElementType element) {
  return find_row([&](const DtypeInfo& row) { return row.element == element; });
}

const DtypeInfo& dtype_info(ScalarType type) { return *find_scalar_type(type); }

}  // namespace muster::format
