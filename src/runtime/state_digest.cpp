#include "state_digest.h"

#include "format/checksum.h"

namespace muster::runtime {
namespace {

class Digest {
 public:
  void add(const State& state) {
    number(static_cast<std::int64_t>(state.kind()));
    switch (state.kind()) {
      case State::Kind::none: break;
      case State::Kind::boolean: number(state.boolean()); break;
      case State::Kind::integer: number(state.integer()); break;
      case State::Kind::number: number(state.number()); break;
      case State::Kind::text: text(state.text()); break;
      case State::Kind::tensor: tensor(state.tensor()); break;
      case State::Kind::list:
        number(state.list().size());
        for (const auto& part : state.list()) add(part);
        break;
      case State::Kind::map:
        number(state.map().size());
        for (const auto& [name, part] : state.map()) {
          text(name);
          add(part);
        }
        break;
    }
  }
  std::uint64_t value() const { return sum_.value(); }

 private:
  template <class T>
  void number(T value) {
    sum_.update(&value, sizeof value);
  }
  void text(std::string_view words) {
    number(words.size());
    sum_.update(words.data(), words.size());
  }
  void tensor(const at::Tensor& value) {
    if (!value.defined()) return;
    number(static_cast<std::int64_t>(value.scalar_type()));
    for (const auto size : value.sizes()) number(size);
    const auto dense = value.detach().to(at::kCPU).contiguous();
    sum_.update(dense.const_data_ptr(), dense.nbytes());
  }

  format::Checksum sum_;
};

}  // namespace

std::uint64_t digest(const State& state) {
  Digest digest;
  digest.add(state);
  return digest.value();
}

}  // namespace muster::runtime
