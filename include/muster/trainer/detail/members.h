#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "muster/trainer/batch.h"

namespace muster::trainer {

enum class StepKind : std::uint8_t { training, validation, test, predict };
inline constexpr std::size_t kStepKinds = 4;

// Detects whether a user's class has a member of this name, whatever its parameters and access, and calls it. The name
// in `Both` is ambiguous exactly if the class has one. In errors, `form_` is the list of parameters after the name, and
// `rule_` explains why an existing member cannot be called.
#define MUSTER_TRAINER_MEMBER_WITH(name_, form_, rule_)                                                \
  struct name_ {                                                                                       \
    struct Named {                                                                                     \
      void name_();                                                                                    \
    };                                                                                                 \
    template <class M>                                                                                 \
    struct Both : M, Named {};                                                                         \
    template <class M>                                                                                 \
    static consteval bool found() {                                                                    \
      static_assert(!std::is_final_v<M>,                                                               \
                    "this class must not be final: Muster derives from it to look for its steps");     \
      if constexpr (std::is_final_v<M>) return true;                                                   \
      else return !requires { &Both<M>::name_; };                                                      \
    }                                                                                                  \
    template <class M>                                                                                 \
    static constexpr bool in = found<M>();                                                             \
    template <class M, class... A>                                                                     \
    static auto call(M& m, A&&... a) -> decltype(m.name_(std::forward<A>(a)...)) {                     \
      return m.name_(std::forward<A>(a)...);                                                           \
    }                                                                                                  \
    template <class M, class Batch = void>                                                             \
    static consteval void refuse() {                                                                   \
      static_assert(!in<M>, "this module's " #name_ form_ rule_);                                      \
      static_assert(in<M>, "this module has no " #name_ form_ ", which the loader's batches are for"); \
    }                                                                                                  \
  }
#define MUSTER_TRAINER_MEMBER(name_, form_) \
  MUSTER_TRAINER_MEMBER_WITH(name_, form_,  \
                             " is private or does not take the loader's batch; the types stand above, as M and Batch")
#define MUSTER_TRAINER_LOADER(name_) \
  MUSTER_TRAINER_MEMBER_WITH(        \
      name_, "()",                   \
      " is private, takes arguments, or does not return a muster::DataLoader or a std::tuple or std::vector of them")

namespace member {
MUSTER_TRAINER_MEMBER(training_step, "(batch, batch_idx)");
MUSTER_TRAINER_MEMBER(validation_step, "(batch, batch_idx)");
MUSTER_TRAINER_MEMBER(test_step, "(batch, batch_idx)");
MUSTER_TRAINER_MEMBER(predict_step, "(batch, batch_idx)");
MUSTER_TRAINER_MEMBER(forward, "(batch)");
MUSTER_TRAINER_MEMBER(on_train_batch_start, "(batch, batch_idx)");
MUSTER_TRAINER_MEMBER(on_train_batch_end, "(output, batch, batch_idx)");
MUSTER_TRAINER_MEMBER(on_validation_batch_start, "(batch, batch_idx)");
MUSTER_TRAINER_MEMBER(on_validation_batch_end, "(output, batch, batch_idx)");
MUSTER_TRAINER_MEMBER(on_test_batch_start, "(batch, batch_idx)");
MUSTER_TRAINER_MEMBER(on_test_batch_end, "(output, batch, batch_idx)");
MUSTER_TRAINER_MEMBER(on_predict_batch_start, "(batch, batch_idx)");
MUSTER_TRAINER_MEMBER(on_predict_batch_end, "(output, batch, batch_idx)");
MUSTER_TRAINER_MEMBER(on_before_batch_transfer, "(batch)");
MUSTER_TRAINER_MEMBER(transfer_batch_to_device, "(batch, device, dataloader_idx)");
MUSTER_TRAINER_MEMBER(on_after_batch_transfer, "(batch)");
MUSTER_TRAINER_LOADER(train_dataloader);
MUSTER_TRAINER_LOADER(val_dataloader);
MUSTER_TRAINER_LOADER(test_dataloader);
MUSTER_TRAINER_LOADER(predict_dataloader);
}  // namespace member
#undef MUSTER_TRAINER_LOADER
#undef MUSTER_TRAINER_MEMBER
#undef MUSTER_TRAINER_MEMBER_WITH

/// The members that belong to a kind of step.
template <class StepMember, class StartMember, class EndMember, class LoaderMember>
struct MembersOf {
  using Step = StepMember;
  using Start = StartMember;
  using End = EndMember;
  using Loader = LoaderMember;
};
template <StepKind K>
using Members = std::tuple_element_t<static_cast<std::size_t>(K),
                                     std::tuple<MembersOf<member::training_step, member::on_train_batch_start,
                                                          member::on_train_batch_end, member::train_dataloader>,
                                                MembersOf<member::validation_step, member::on_validation_batch_start,
                                                          member::on_validation_batch_end, member::val_dataloader>,
                                                MembersOf<member::test_step, member::on_test_batch_start,
                                                          member::on_test_batch_end, member::test_dataloader>,
                                                MembersOf<member::predict_step, member::on_predict_batch_start,
                                                          member::on_predict_batch_end, member::predict_dataloader>>>;

/// Calls a member with as many of (batch, batch_idx, dataloader_idx) as it takes, after `before`.
template <class Member, class M, class Batch, class... Before>
decltype(auto) call_with_accepted_arguments(M& m, Batch& batch, BatchPlace place, Before&... before) {
  if constexpr (requires { Member::call(m, before..., batch, place.batch_idx, place.dataloader_idx); })
    return Member::call(m, before..., batch, place.batch_idx, place.dataloader_idx);
  else if constexpr (requires { Member::call(m, before..., batch, place.batch_idx); })
    return Member::call(m, before..., batch, place.batch_idx);
  else if constexpr (requires { Member::call(m, before..., batch); }) return Member::call(m, before..., batch);
  else Member::template refuse<M, Batch>();
}

/// Whether the class has a hook between the making of a batch and its step, so that batches are moved one by one.
template <class D>
inline constexpr bool has_transfer_hooks =
    member::on_before_batch_transfer::in<D> || member::transfer_batch_to_device::in<D> ||
    member::on_after_batch_transfer::in<D>;

}  // namespace muster::trainer
