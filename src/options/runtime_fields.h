#pragma once  // for other rooms

#include "muster/base/detail/options.h"

/// The options of a program, each described once: those of RuntimeOptions, which AcceleratorOptions, FabricOptions and
/// TrainerOptions share in part under the same names. To add an option, add its line here, in alphabetical order.
/// Why: docs/decisions/0079-options-are-described-once.md.
namespace muster::runtime {

/// An accessor for the field at this path; ill-formed (SFINAE) for an option struct without it.
#define MUSTER_FIELD(path) [](auto& options) -> decltype((options.path)) { return options.path; }

/// Calls visit(name, accessor, description) for the options that say where and how a program runs.
template <class Visit>
void visit_placement_options(Visit&& visit) {
  visit("accelerator", MUSTER_FIELD(accelerator),
        {.help = "kind of device for the ranks: cpu, cuda, gpu or auto",
         .tested_by = "OptionEffects.TheAcceleratorIsChosen"});
  visit("affinity", MUSTER_FIELD(affinity),
        {.help = "the threads of a rank keep to cores near its GPU, where ranks can share these out",
         .tested_by = "OptionEffects.ThreadsStayWhereTheyAreWithoutAGpu"});
  visit(
      "backend", MUSTER_FIELD(backend),
      {.help =
           "how ranks exchange values: shm (shared memory of one host), hierarchical (the same on each host, and gloo "
           "between hosts), gloo, mpi (where mpirun starts the ranks), a custom transport, or auto: the first of shm, "
           "hierarchical and gloo that all ranks can use",
       .tested_by = "Launcher.TheBackendIsChosen"});
  visit("benchmark", MUSTER_FIELD(benchmark),
        {.help = "cuDNN tries its kernels for each new shape and takes the fastest; auto: as LibTorch has it, but off "
                 "with deterministic",
         .tested_by = "OptionEffects.TheFirstOneChoosesKernels"});
  visit("callbacks", MUSTER_FIELD(callbacks),
        {.help = "objects called by the runtime", .tested_by = "Callbacks.AreCalledWhereTheyHaveTheFunction"});
  visit("cluster_reader", MUSTER_FIELD(cluster_reader),
        {.help = "function that reads the variables of a custom launcher",
         .tested_by = "ClusterReader.MakesTheRanksOfAProgram"});
  visit("deterministic", MUSTER_FIELD(deterministic),
        {.help = "use only deterministic kernels; an operation that has none is an error, or with warn a warning",
         .tested_by = "OptionEffects.OnlyDeterministicKernelsAreUsed"});
  visit("device_backend", MUSTER_FIELD(device_backend),
        {.help = "how ranks exchange tensors of the accelerator: auto (nccl for CUDA, if libmuster_nccl.so is "
                 "there), none (through host memory), or the name or path of another object; in code also a factory",
         .tested_by = "DeviceBackendOption.TrainsAsTheCpuDoes"});
  visit("devices", MUSTER_FIELD(devices),
        {.help = "ranks on this node, which launch() starts if no launcher has",
         .tested_by = "Launcher.SeveralDevicesWantLaunchFirst"});
  visit("keep_memory", MUSTER_FIELD(keep_memory),
        {.help = "keep freed memory of CPU tensors for the next step",
         .tested_by = "KeepMemory.IsChosenByTheProgramThenTheVariableThenTheLauncher"});
  visit("matmul_precision", MUSTER_FIELD(matmul_precision),
        {.help = "how float32 matrices are multiplied: highest, high (TF32) or medium (bfloat16); auto: as LibTorch "
                 "has it",
         .tested_by = "OptionEffects.ProductsOfMatricesAreAsPreciseAsAsked"});
  visit("num_nodes", MUSTER_FIELD(num_nodes),
        {.help = "number of nodes that launch() expects", .tested_by = "Launcher.AnotherNumberOfNodesIsRefused"});
  visit("timeout", MUSTER_FIELD(timeout),
        {.help = "longest wait for other ranks, in a collective and in the rendezvous; 0: as the program says",
         .unit = "seconds",
         .aliases = {"timeout_seconds"},
         .tested_by = "Launcher.ATimeOutReachesTheGroupAndTheMeeting"});
  visit("two_level_sums", MUSTER_FIELD(two_level_sums),
        {.help =
             "the backend hierarchical adds up on each host first, and then the hosts' sums; not bit-identical to gloo",
         .tested_by = "Launcher.SumsOfTwoLevelsAreChosen"});
}

/// Calls visit(name, accessor, description) for the options of data and files.
template <class Visit>
void visit_data_options(Visit&& visit) {
  visit("dispatch_batches", MUSTER_FIELD(dispatch_batches),
        {.help = "rank 0 alone reads the data and sends each rank its batches; auto: as each loader's options say",
         .tested_by = "BothApis.StreamsAreDispatchedAndGeneratorsKeptInStepWhereAsked"});
  visit("even_batches", MUSTER_FIELD(even_batches),
        {.help = "every rank gets the same number of batches of the same size",
         .tested_by = "BothApis.CountEachSampleOnceInAWholeEvaluation"});
  visit("project.automatic_checkpoint_naming", MUSTER_FIELD(project.automatic_checkpoint_naming),
        {.help = "save_state() and load_state() use numbered folders unless they are given one",
         .tested_by = "Saving.NumbersGoOnAfterTheHighestAndOldOnesGo"});
  visit("project.directory", MUSTER_FIELD(project.directory),
        {.help = "folder of the program's files",
         .aliases = {"project_dir"},
         .tested_by = "Saving.NumbersGoOnAfterTheHighestAndOldOnesGo"});
  visit("project.storage", MUSTER_FIELD(project.storage),
        {.help = "a CheckpointStorage, used instead of folders",
         .tested_by = "OwnStorage.TrainingResumesFromItOnAnotherNumberOfRanks"});
  visit("project.total_limit", MUSTER_FIELD(project.total_limit),
        {.help = "number of numbered checkpoints to keep; 0: all",
         .tested_by = "Saving.NumbersGoOnAfterTheHighestAndOldOnesGo"});
  visit("split_batches", MUSTER_FIELD(split_batches),
        {.help = "a loader's batch_size is that of all ranks together",
         .tested_by = "Evaluation.CountsEachSampleOnceAndInOrderInEveryConfiguration"});
  visit("synced_generators.cpu", MUSTER_FIELD(synced_generators.cpu),
        {.help = "the CPU generator gets rank 0's state when a pass begins",
         .tested_by = "BothApis.StreamsAreDispatchedAndGeneratorsKeptInStepWhereAsked"});
  visit("synced_generators.device", MUSTER_FIELD(synced_generators.device),
        {.help = "the device's generator gets rank 0's state when a pass begins",
         .tested_by = "SharedRandom.GeneratorsOnRequest"});
}

/// Calls visit(name, accessor, description) for the options of training.
template <class Visit>
void visit_training_options(Visit&& visit) {
  visit("fp32_modules", MUSTER_FIELD(fp32_modules),
        {.help = "submodules whose parameters stay in float32",
         .tested_by = "HalfOnCpu.TrueHalfCastsParametersAndKeepsNamedModules"});
  visit("grad_scaler.backoff_factor", MUSTER_FIELD(grad_scaler.backoff_factor),
        {.help = "the loss scale is multiplied by this after gradients that are not finite",
         .tested_by = "OptionEffects.TheLossScaleFollowsItsOptions"});
  visit("grad_scaler.enabled", MUSTER_FIELD(grad_scaler.enabled),
        {.help = "scale losses under 16-mixed", .tested_by = "OptionEffects.TheLossScaleFollowsItsOptions"});
  visit("grad_scaler.growth_factor", MUSTER_FIELD(grad_scaler.growth_factor),
        {.help = "the loss scale is multiplied by this after growth_interval steps with finite gradients",
         .tested_by = "OptionEffects.TheLossScaleFollowsItsOptions"});
  visit("grad_scaler.growth_interval", MUSTER_FIELD(grad_scaler.growth_interval),
        {.help = "steps with finite gradients before the loss scale grows",
         .tested_by = "GradScaler.DoesAsPyTorchStepByStep"});
  visit("grad_scaler.init_scale", MUSTER_FIELD(grad_scaler.init_scale),
        {.help = "first loss scale", .tested_by = "OptionEffects.TheLossScaleFollowsItsOptions"});
  visit("gradient_accumulation.adjust_scheduler", MUSTER_FIELD(gradient_accumulation.adjust_scheduler),
        {.help = "schedules count micro-batches", .tested_by = "Options.SchedulesInMicroBatches"});
  visit("gradient_accumulation.num_steps", MUSTER_FIELD(gradient_accumulation.num_steps),
        {.help = "number of micro-batches in a window",
         .aliases = {"accumulate_grad_batches", "gradient_accumulation_steps"},
         .tested_by = "Options.OneNumberOfMicroBatches"});
  visit("gradient_accumulation.sync_each_batch", MUSTER_FIELD(gradient_accumulation.sync_each_batch),
        {.help = "communicate gradients in every micro-batch", .tested_by = "Accumulation.EveryBatchMayCommunicate"});
  visit("gradient_accumulation.sync_with_dataloader", MUSTER_FIELD(gradient_accumulation.sync_with_dataloader),
        {.help = "the last batch of a loader ends the window",
         .tested_by = "AccumulationCase.EndsWindowsAsTheReferenceDoes"});
  visit("gradient_accumulation.weighting", MUSTER_FIELD(gradient_accumulation.weighting),
        {.help = "how the gradients of a window are combined",
         .tested_by = "Weighting.SumAddsUpAndFixedDividesByTheNumberOfSteps"});
  visit("precision", MUSTER_FIELD(precision),
        {.help = "precision of parameters and computation, such as bf16-mixed",
         .aliases = {"mixed_precision"},
         .tested_by = "Launcher.ARequestFillsADefaultAndMustNotContradict"});
  visit(
      "step_scheduler_with_optimizer", MUSTER_FIELD(step_scheduler_with_optimizer),
      {.help = "a scheduler steps only if its optimizer has stepped", .tested_by = "Options.SchedulesInMicroBatches"});
  visit("strategy", MUSTER_FIELD(strategy),
        {.help = "strategy of training, such as ddp or fsdp; its options begin with ddp. and fsdp.",
         .tested_by = "Strategies.AreMadeByName"});
}

/// Calls visit(name, accessor, description) for each option of a program, apart from those of a strategy.
template <class Visit>
void visit_options(Visit&& visit) {
  visit_placement_options(visit);
  visit_data_options(visit);
  visit_training_options(visit);
}

/// Copies every option that both structs have under the same name.
template <class To, class From>
To copied_options(const From& from) {
  To to;
  visit_options([&](const char*, auto get, const options::Description&) {
    constexpr bool in_both = requires { get(to) = get(from); };
    if constexpr (in_both) get(to) = get(from);
  });
  return to;
}

}  // namespace muster::runtime
