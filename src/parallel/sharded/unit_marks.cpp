#include "parallel/sharded/unit_marks.h"

#include <thread>
#include <unordered_map>

#include "base/mutex.h"
#include "muster/parallel/wrap.h"

namespace muster::parallel {
namespace {

struct Mark {
  std::weak_ptr<torch::nn::Module> module;
  std::thread::id thread;
  bool claimed = false;
};

// Marks are stored here because a module has no place for a mark, and a model and its user hold different pointers to
// it.
struct Marks {
  base::Mutex mutex;
  std::unordered_map<const torch::nn::Module*, Mark> all MUSTER_GUARDED_BY(mutex);
};

Marks& marks() {
  // Never destroyed: modules may outlive other static objects.
  static Marks* const only = new Marks;
  return *only;
}

Mark* find_mark(Marks& marks, const torch::nn::Module& module) MUSTER_REQUIRES(marks.mutex) {
  const auto found = marks.all.find(&module);
  return found == marks.all.end() || found->second.module.expired() ? nullptr : &found->second;
}

}  // namespace

void mark_unit(const std::shared_ptr<torch::nn::Module>& module) {
  auto& known = marks();
  const base::Lock lock(known.mutex);
  std::erase_if(known.all, [](const auto& entry) { return entry.second.module.expired(); });
  known.all.try_emplace(module.get(), Mark{module, std::this_thread::get_id()});
}

bool is_unit(const torch::nn::Module& module) {
  auto& known = marks();
  const base::Lock lock(known.mutex);
  return find_mark(known, module) != nullptr;
}

bool claim_mark(const torch::nn::Module& module) {
  auto& known = marks();
  const base::Lock lock(known.mutex);
  auto* mark = find_mark(known, module);
  if (mark) mark->claimed = true;
  return mark != nullptr;
}

std::vector<std::string> take_lost_marks() {
  std::vector<std::shared_ptr<torch::nn::Module>>
      lost;  // destroyed after the lock is released: the last owner may run a module's destructor
  {
    auto& known = marks();
    const base::Lock lock(known.mutex);
    for (auto& [_, mark] : known.all)
      if (auto module = mark.claimed || mark.thread != std::this_thread::get_id() ? nullptr : mark.module.lock()) {
        mark.claimed = true;
        lost.push_back(std::move(module));
      }
  }
  std::vector<std::string> names;
  for (const auto& module : lost) names.push_back(module->name());
  return names;
}

}  // namespace muster::parallel
