#include "muster/data/detail/batch_maker.h"

#include <exception>

#include <c10/util/Exception.h>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster::data {

void throw_dataset_error(int64_t index, bool whole_batch) {
  std::string cause = kNoStdException;
  try {
    throw;
  } catch (const c10::Error& e) {
    cause = e.what_without_backtrace();
  } catch (const std::exception& e) {
    cause = e.what();
  } catch (...) {}
  const std::string where = whole_batch ? "in the batch that begins with sample " : "at sample ";
  std::throw_with_nested(DatasetError(index, "the dataset failed " + where + std::to_string(index) + ": " + cause));
}

void refuse_sharing() {
  throw UsageError(
      "MU103",
      "several workers cannot read this dataset: its members are not const, so that each worker needs a copy, "
      "and it cannot be copied. Make get or get_batch const (and safe to call from several threads), make the "
      "dataset copyable, or set workers = 0");
}

void BatchBox::refuse_sending() {
  throw UsageError(
      "MU112",
      "batches of this type cannot be sent to other ranks, which dispatch_batches needs: give the loader data "
      "whose batches have a default constructor, or leave dispatch_batches out");
}

void require_dataset(const void* dataset) {
  if (!dataset) throw ConfigError("MU128", "a loader was given a pointer to no dataset; make the dataset first");
}

void require_whole(bool whole) {
  if (!whole)
    throw ConfigError(
        "MU128",
        "a loader was given a dataset by a reference to its base class, and a copy of that would leave out the rest: "
        "give the dataset by its own type, by a shared_ptr, or by std::ref() if it outlives the loader");
}

int64_t known_size(std::optional<size_t> size) {
  if (size) return static_cast<int64_t>(*size);
  throw ConfigError("MU104",
                    "the dataset does not know its size; muster::DataLoader takes datasets with a size and an index");
}

}  // namespace muster::data
