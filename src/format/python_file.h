#pragma once  // for other rooms

#include "format/atomic_file.h"
#include "input_file.h"
#include "safetensors.h"

/// Files of Python's torch.save and of LibTorch's torch::save, as values and bytes. Nothing in a file is ever executed.
/// docs/formats/python.md describes what is read, written and refused. This file does not use LibTorch tensors.
namespace muster::format {

/// A Python value, of the kinds that can be identified without running Python.
struct PythonValue {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    number,
    text,
    bytes,
    list,  ///< also a set
    tuple,
    map,      ///< also OrderedDict, Counter, defaultdict; keys are unique
    tensor,   ///< `integer` is the index among the file's tensors
    foreign,  ///< object of an unknown class; `text` is the class
  };
  /// A key and its value. A std::pair, because clang needs a complete type for the initializer of `entries`.
  using Entry = std::pair<PythonValue, PythonValue>;

  Kind kind = Kind::none;
  std::int64_t integer = 0;  ///< value of an integer or boolean (0 or 1)
  double number = 0;
  std::string text = {};  ///< value of text, bytes or foreign; not empty for a map of a TorchScript module
  std::vector<PythonValue> items = {};  ///< items of a list or tuple
  std::vector<Entry> entries = {};      ///< entries of a map, in order

  static PythonValue of_integer(std::int64_t value);
  static PythonValue of_text(std::string value, Kind kind = Kind::text);
  static PythonValue of_tensor(std::size_t position);
  /// Appends an entry with a text key to a map.
  void add(std::string key, PythonValue value);
  /// The value under a text key, or nullptr.
  const PythonValue* find(std::string_view key) const;
};

/// Memory that tensors are views of.
struct PythonStorage {
  std::string key = {};       ///< key of the storage in the file
  std::string location = {};  ///< device of the storage, such as "cpu" or "cuda:0"
  std::uint64_t offset = 0;   ///< position of its bytes in the file; unused for a file to be written
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  bool has_crc = false;
};

/// A view of a storage. Offset and strides count elements.
struct PythonTensor {
  std::size_t storage = 0;
  ScalarType type = ScalarType::float32;
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape, strides;
  bool conjugate = false,
       negative = false;  ///< LibTorch's lazy bits: the values are the bytes conjugated or negated
};

/// Whether the text is the shortest decimal form of an integer of at most 18 digits; integer keys of a dictionary
/// become such text.
bool is_decimal_key(std::string_view text);

/// The number of elements. Requires: a tensor that was read, or a shape that does not overflow.
std::int64_t element_count(std::span<const std::int64_t> shape);
/// Whether the elements are in row-major order without gaps.
bool is_dense(const PythonTensor& tensor);

/// A whole file. Each tensor lies within its storage, each storage within the file.
struct PythonFile {
  enum class Form : std::uint8_t {
    zip,      ///< torch.save since 1.6
    legacy,   ///< torch.save before 1.6
    archive,  ///< torch::save of LibTorch, or TorchScript
  };
  Form form = Form::zip;
  PythonValue value;
  std::vector<PythonStorage> storages;
  std::vector<PythonTensor> tensors;
};

/// Whether read_python_file() may be able to read the file, judged by its first bytes.
bool is_python_file(const InputFile& source);

/// Reads everything except the tensors' bytes of a file that may be hostile. The value of an archive has Python's form:
/// a module's tensors by full name, an optimizer's state as its state_dict.
/// Throws: CheckpointError MU225 with the reason; MU200.
PythonFile read_python_file(const InputFile& source);

/// Advice about an object of this class; empty if there is none.
std::string advice_about(std::string_view foreign_class);

/// The pickle of the value in protocol 2: the content of the record data.pkl. Storages are named by their index.
/// Requires: no foreign value, nesting below 200; all types have a DtypeInfo.
std::string write_pickle(const PythonFile& content);

/// Writes a file that torch.load reads with weights_only. `bytes_of` returns a storage's bytes, valid until the next
/// call; it is called once for each storage, in order. The file is not published.
/// Requires: as write_pickle(); `stem` is the name of the archive's folder.
/// Throws: CheckpointError MU202.
void write_python_file(AtomicFile& file, const PythonFile& content, std::string_view stem,
                       const std::function<std::string_view(std::size_t storage)>& bytes_of);

}  // namespace muster::format
