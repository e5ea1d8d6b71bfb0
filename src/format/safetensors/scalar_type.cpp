#include "muster/format/detail/scalar_type.h"

#include <algorithm>
#include <array>

namespace muster::format {
namespace {

constexpr ScalarType number(int value) { return static_cast<ScalarType>(value); }

using Element = ElementType;
constexpr std::array kScalarTypes{
    ScalarTypeRow{number(0), "uint8", 1, "ByteStorage", Element::u8},
    ScalarTypeRow{number(1), "int8", 1, "CharStorage", Element::i8},
    ScalarTypeRow{number(2), "int16", 2, "ShortStorage", Element::i16},
    ScalarTypeRow{number(3), "int32", 4, "IntStorage", Element::i32},
    ScalarTypeRow{number(4), "int64", 8, "LongStorage", Element::i64},
    ScalarTypeRow{number(5), "float16", 2, "HalfStorage", Element::f16},
    ScalarTypeRow{number(6), "float32", 4, "FloatStorage", Element::f32},
    ScalarTypeRow{number(7), "float64", 8, "DoubleStorage", Element::f64},
    ScalarTypeRow{number(8), "complex32", 4, "", std::nullopt},
    ScalarTypeRow{number(9), "complex64", 8, "ComplexFloatStorage", Element::c64},
    ScalarTypeRow{number(10), "complex128", 16, "ComplexDoubleStorage", std::nullopt},
    ScalarTypeRow{number(11), "bool", 1, "BoolStorage", Element::boolean},
    ScalarTypeRow{number(15), "bfloat16", 2, "BFloat16Storage", Element::bf16},
    ScalarTypeRow{number(18), "bits1x8", 1, "", std::nullopt},
    ScalarTypeRow{number(19), "bits2x4", 1, "", std::nullopt},
    ScalarTypeRow{number(20), "bits4x2", 1, "", std::nullopt},
    ScalarTypeRow{number(21), "bits8", 1, "", std::nullopt},
    ScalarTypeRow{number(22), "bits16", 2, "", std::nullopt},
    ScalarTypeRow{number(23), "float8_e5m2", 1, "", Element::f8_e5m2},
    ScalarTypeRow{number(24), "float8_e4m3fn", 1, "", Element::f8_e4m3},
    ScalarTypeRow{number(25), "float8_e5m2fnuz", 1, "", Element::f8_e5m2fnuz},
    ScalarTypeRow{number(26), "float8_e4m3fnuz", 1, "", Element::f8_e4m3fnuz},
    ScalarTypeRow{number(27), "uint16", 2, "", Element::u16},
    ScalarTypeRow{number(28), "uint32", 4, "", Element::u32},
    ScalarTypeRow{number(29), "uint64", 8, "", Element::u64},
    ScalarTypeRow{number(44), "float8_e8m0fnu", 1, "", Element::f8_e8m0},
    ScalarTypeRow{number(45), "float4_e2m1fn_x2", 1, "", Element::f4},
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
const ScalarTypeRow* find_row(Matches matches) {
  const auto found = std::find_if(kScalarTypes.begin(), kScalarTypes.end(), matches);
  return found == kScalarTypes.end() ? nullptr : &*found;
}

}  // namespace

const ScalarTypeRow* find_scalar_type(ScalarType type) {
  return find_row([&](const ScalarTypeRow& row) { return row.type == type; });
}

const ScalarTypeRow* find_scalar_type(std::string_view name) {
  for (const auto& [alias, full] : kScalarAliases)
    if (alias == name) name = full;
  return find_row([&](const ScalarTypeRow& row) { return row.name == name; });
}

const ScalarTypeRow* find_storage_type(std::string_view storage) {
  if (storage.empty()) return nullptr;
  return find_row([&](const ScalarTypeRow& row) { return row.storage == storage; });
}

const ScalarTypeRow* find_scalar_type(ElementType element) {
  return find_row([&](const ScalarTypeRow& row) { return row.element == element; });
}

const ScalarTypeRow& row_of(ScalarType type) { return *find_scalar_type(type); }

}  // namespace muster::format
