#include "sim/call.h"

#include <memory>
#include <optional>
#include <set>
#include <unordered_map>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include "sim/machine.h"
#include "sim/tensors.h"

namespace muster::sim {
namespace {

/// Whether shapes of results depend on values; CUDA waits for these, too.
bool depends_on_values(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::_unique",           "aten::_unique2",           "aten::argwhere",      "aten::bincount",
      "aten::linalg_eig",        "aten::linalg_lstsq",       "aten::masked_select", "aten::nonzero",
      "aten::repeat_interleave", "aten::unique_consecutive", "aten::unique_dim",    "aten::unique_dim_consecutive"};
  return names.contains(name);
}

bool is_tensor(const c10::Type& type) { return type.str().find("Tensor") != std::string::npos; }

}  // namespace

OperatorUse read_schema(const c10::FunctionSchema& schema) {
  OperatorUse use;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const bool writes = argument.alias_info() && argument.alias_info()->isWrite();
    use.writes.push_back(writes);
    use.resizes |= argument.is_out();
    use.reads |= !writes && is_tensor(*argument.type());
    if (argument.type()->str().find("Generator") != std::string::npos) use.generator = static_cast<int>(i);
  }
  for (const auto& result : schema.returns()) {
    const auto* info = result.alias_info();
    use.is_view |= info && !info->isWrite();
    use.makes |= !info;
    use.waits |= !is_tensor(*result.type());
  }
  use.waits |= depends_on_values(schema.name());
  return use;
}

const OperatorUse& use_of(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorUse> known;
  const auto found = known.find(&schema);
  return found != known.end() ? found->second : known.emplace(&schema, read_schema(schema)).first->second;
}

namespace {

/// Keeps the arguments alive after the call: LibTorch 2.11 returns a tuple's references to tensors that it has already
/// dropped.
Values called(const c10::OperatorHandle& op, c10::DispatchKey key, const Values& arguments) {
  torch::jit::Stack stack(arguments);
  op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
  return stack;
}

void lay_out_as(const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.sizes() == like.sizes()) return;
  tensor.resize_(like.sizes());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
}

at::Tensor on_cpu_like(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

/// Runs when the stream reaches the call: fills the predicted results from what the CPU's kernel returns.
void run_kernel(const c10::OperatorHandle& op, const Values& arguments, const std::vector<at::Tensor>& targets) {
  Machine::get().mutex().assume_locked();  // it is while a command runs
  const AsKernel plain;
  const auto results = tensors_in(called(op, c10::DispatchKey::CPU, arguments));
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto& target = targets[i];
    if (!target.defined()) continue;
    TORCH_CHECK(results[i].sizes() == target.sizes() && results[i].dtype() == target.dtype(), "result ", i, " is ",
                results[i].dtype(), " of ", results[i].sizes(), ", but ", target.dtype(), " of ", target.sizes(),
                " was foretold");
    if (results[i].strides() != target.strides() && results[i].numel() > 0)
      ++Machine::get().stats.restrided[op.schema().name()];
    target.copy_(results[i]);
  }
}

}  // namespace

c10::IValue mapped(const c10::IValue& value, const TensorMap& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& tensor : value.toTensorVector()) list.push_back(f(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(f(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

std::vector<at::Tensor> tensors_in(const Values& values) {
  std::vector<at::Tensor> all;
  for (const auto& value : values)
    mapped(value, [&](const at::Tensor& tensor) {
      all.push_back(tensor);
      return tensor;
    });
  return all;
}

Call::Call(const c10::OperatorHandle& op, Values arguments)
    : op_(op), name_(op.schema().name()), use_(use_of(op.schema())), arguments_(std::move(arguments)),
      device_(c10::DeviceType::PrivateUse1) {
  std::optional<c10::Device> device;
  for (auto& argument : arguments_)
    argument = mapped(argument, [&](const at::Tensor& tensor) { return argument_on_device(argument, tensor, device); });
  for (const auto& argument : arguments_)
    if (!device && argument.isDevice()) device = argument.toDevice();
  TORCH_CHECK(device, name_, " was called for the simulated accelerator without a tensor that is there");
  device_ = device->has_index() ? *device : sim::device(current_device());
}

/// Only numbers, and indices of `index`, may be on the host. They are read at once.
at::Tensor Call::argument_on_device(const c10::IValue& argument, const at::Tensor& tensor,
                                    std::optional<c10::Device>& device) {
  if (!tensor.defined()) return tensor;
  if (is_on_device(tensor)) {
    TORCH_CHECK(!device || *device == tensor.device(), name_,
                ": Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ",
                tensor.device());
    device = tensor.device();
    return tensor;
  }
  TORCH_CHECK(tensor.device().is_cpu() && (tensor.dim() == 0 || argument.isOptionalTensorList()), name_,
              ": Expected all tensors to be on the same device, but one of size ", tensor.sizes(), " is on ",
              tensor.device());
  auto now = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) now.unsafeGetTensorImpl()->set_wrapped_number(true);
  return now;
}

void Call::run(torch::jit::Stack& stack) {
  TORCH_CHECK(!use_.is_view, "the simulated accelerator has no kernel for the view operator ", name_);
  const c10::DeviceGuard guard(device_);
  const AsKernel plain;
  if (use_.generator >= 0 && !use_.reads) return draw_now(stack);
  if (use_.generator >= 0) arguments_[static_cast<size_t>(use_.generator)] = generator().branch();
  if (use_.waits || indexes_by_mask()) return wait_and_run(stack);
  Values results;
  if (use_.makes || use_.resizes) {
    const auto prediction = predict();
    if (use_.resizes) resize_outputs(prediction.arguments);
    for (const auto& value : prediction.results)
      results.push_back(mapped(value, [&](const at::Tensor& like) { return made_like(like); }));
  }
  enqueue(results);
  push(stack, std::move(results));
}

/// CUDA searches a mask for nonzero elements, and waits for the result.
bool Call::indexes_by_mask() const {
  for (const auto& argument : arguments_) {
    if (!argument.isOptionalTensorList()) continue;
    for (const auto& index : tensors_in({argument}))
      if (index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte)) return true;
  }
  return false;
}

Generator& Call::generator() const {
  const auto& given = arguments_[static_cast<size_t>(use_.generator)];
  return *(given.isNone() ? default_generator(device_.index()) : given.toGenerator()).get<Generator>();
}

Values Call::with(const TensorMap& f, c10::DeviceType type) const {
  Values all;
  for (const auto& argument : arguments_)
    all.push_back(argument.isDevice() ? c10::IValue(c10::Device(type)) : mapped(argument, f));
  return all;
}

Values Call::for_kernel() const {
  auto tensors = std::make_shared<KernelTensors>();
  return with([tensors](const at::Tensor& tensor) { return (*tensors)(tensor); }, c10::DeviceType::CPU);
}

Call::Prediction Call::predict() const {
  static const std::set<std::string> without_meta = {"aten::convolution", "aten::convolution_backward"};
  if (!op_.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta) || without_meta.contains(name_))
    return run_on_ones();
  try {
    auto arguments = with(
        [](const at::Tensor& t) {
          return is_on_device(t) ? at::Tensor(at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type()))
                                 : t;
        },
        c10::DeviceType::Meta);
    auto results = called(op_, c10::DispatchKey::Meta, arguments);
    return {std::move(arguments), std::move(results)};
  } catch (const c10::NotImplementedError&) {
    return run_on_ones();
  }
}

Call::Prediction Call::run_on_ones() const {
  {
    const auto lock = Machine::get().lock();
    ++Machine::get().stats.guessed[name_];
  }
  auto arguments = with(
      [](const at::Tensor& t) { return is_on_device(t) ? on_cpu_like(t).fill_(t.is_floating_point() ? 1 : 0) : t; },
      c10::DeviceType::CPU);
  auto results = called(op_, c10::DispatchKey::CPU, arguments);
  return {std::move(arguments), std::move(results)};
}

at::Tensor Call::made_like(const at::Tensor& like) const {
  return like.defined() ? at::empty_strided(like.sizes(), like.strides(), like.options().device(device_)) : like;
}

void Call::resize_outputs(const Values& predicted) const {
  for (size_t i = 0; i < arguments_.size(); ++i)
    if (use_.writes[i] && arguments_[i].isTensor() && arguments_[i].toTensor().defined())
      lay_out_as(arguments_[i].toTensor(), predicted[i].toTensor());
}

std::vector<Access> Call::accesses() const {
  std::vector<Access> all;
  for (size_t i = 0; i < arguments_.size(); ++i)
    for (const auto& tensor : tensors_in({arguments_[i]})) add_access(all, tensor, use_.writes[i]);
  return all;
}

void Call::enqueue(const Values& results) const {
  Command command{name_, {}, {}, accesses()};
  auto targets = tensors_in(results);
  for (auto& target : targets) {
    add_access(command.accesses, target, true);
    target = kernel_tensor(target);
  }
  command.run = [op = op_, arguments = for_kernel(), targets] { run_kernel(op, arguments, targets); };
  Machine::get().enqueue(current_stream(device_.index()), std::move(command));
}

/// Draws random numbers that depend on no value of the device: the host draws them, the device writes them.
void Call::draw_now(torch::jit::Stack& stack) {
  std::vector<std::pair<at::Tensor, at::Tensor>> drawn;
  generator().draw_on_cpu([&](const at::Generator& cpu) {
    arguments_[static_cast<size_t>(use_.generator)] = cpu;
    called(op_, c10::DispatchKey::CPU,
           with(
               [&](const at::Tensor& tensor) {
                 if (!is_on_device(tensor)) return tensor;
                 drawn.emplace_back(tensor, on_cpu_like(tensor));
                 return drawn.back().second;
               },
               c10::DeviceType::CPU));
  });
  for (const auto& [to, from] : drawn) {
    lay_out_as(to, from);
    enqueue_copy(current_stream(device_.index()), name_, from, to);
  }
  push(stack, {});
}

void Call::wait_and_run(torch::jit::Stack& stack) {
  const auto stream = current_stream(device_.index());
  Machine::get().synchronize(stream, name_);
  Machine::get().host_accesses(name_, accesses());
  auto arguments = for_kernel();
  for (size_t i = 0; use_.resizes && i < arguments.size(); ++i)
    if (use_.writes[i]) arguments[i] = at::empty({0}, arguments[i].toTensor().options());
  Values results;
  {
    const auto lock = Machine::get().lock();  // keeps other streams' commands from running meanwhile
    results = called(op_, c10::DispatchKey::CPU, arguments);
  }
  for (auto& result : results)
    result = mapped(result, [&](const at::Tensor& from) {
      if (!from.defined() || use_.resizes) return from;
      auto to = made_like(from);
      enqueue_copy(stream, name_, from, to);
      return to;
    });
  for (size_t i = 0; use_.resizes && i < arguments.size(); ++i) {
    if (!use_.writes[i]) continue;
    lay_out_as(arguments_[i].toTensor(), arguments[i].toTensor());
    enqueue_copy(stream, name_, arguments[i].toTensor(), arguments_[i].toTensor());
  }
  push(stack, std::move(results));
}

/// Pushes the results. A result that is a written argument according to the schema is that argument.
void Call::push(torch::jit::Stack& stack, Values made) const {
  const auto& returns = op_.schema().returns();
  for (size_t r = 0; r < returns.size(); ++r) {
    if (!returns[r].alias_info()) {
      stack.push_back(std::move(made[r]));
      continue;
    }
    for (size_t i = 0; i < arguments_.size(); ++i)
      if (use_.writes[i] && *op_.schema().arguments()[i].alias_info() == *returns[r].alias_info()) {
        stack.push_back(arguments_[i]);
        break;
      }
  }
}

}  // namespace muster::sim
