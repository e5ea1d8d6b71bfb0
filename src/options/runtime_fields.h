#pragma once  // for other rooms

#include "base/options_text.h"

/// The options of a program, each described once: those of RuntimeOptions, which AcceleratorOptions, FabricOptions and
/// TrainerOptions share in part under the same names. To add an option, add its line here, in alphabetical order.
/// Why: docs/decisions/0079-options-are-described-once.md.
namespace muster::runtime {

/// Calls visit(name, accessor, help, test of its effect[, description of the rest]) for the options that say where and
/// how a program runs.
template <class Visit>
void visit_placement_options(Visit&& visit) {
  visit(MUSTER_FIELD(accelerator), "kind of device for the ranks: cpu, cuda, gpu or auto",
        "OptionEffects.TheAcceleratorIsChosen");
  visit(MUSTER_FIELD(affinity), "the threads of a rank keep to cores near its GPU, where ranks can share these out",
        "OptionEffects.ThreadsStayWhereTheyAreWithoutAGpu");
  visit(MUSTER_FIELD(backend),
        "how ranks exchange values: shm (shared memory of one host), hierarchical (the same on each host, and gloo "
        "between hosts), gloo, mpi (where mpirun starts the ranks), a custom transport, or auto: the first of shm, "
        "hierarchical and gloo that all ranks can use",
        "Launcher.TheBackendIsChosen");
  visit(MUSTER_FIELD(benchmark),
        "cuDNN tries its kernels for each new shape and takes the fastest; auto: as LibTorch has it, but off with "
        "deterministic",
        "OptionEffects.TheFirstOneChoosesKernels");
  visit(MUSTER_FIELD(callbacks), "objects called by the runtime", "Callbacks.AreCalledWhereTheyHaveTheFunction");
  visit(MUSTER_FIELD(cluster_reader), "function that reads the variables of a custom launcher",
        "ClusterReader.MakesTheRanksOfAProgram");
  visit(MUSTER_FIELD(deterministic),
        "use only deterministic kernels; an operation that has none is an error, or with warn a warning",
        "OptionEffects.OnlyDeterministicKernelsAreUsed");
  visit(MUSTER_FIELD(device_backend),
        "how ranks exchange tensors of the accelerator: auto (nccl for CUDA, if libmuster_nccl.so is there), none "
        "(through host memory), or the name or path of another object; in code also a factory",
        "DeviceBackendOption.TrainsAsTheCpuDoes");
  visit(MUSTER_FIELD(devices), "ranks on this node, which launch() starts if no launcher has",
        "Launcher.SeveralDevicesWantLaunchFirst");
  visit(MUSTER_FIELD(keep_memory), "keep freed memory of CPU tensors for the next step",
        "KeepMemory.IsChosenByTheProgramThenTheVariableThenTheLauncher");
  visit(MUSTER_FIELD(matmul_precision),
        "how float32 matrices are multiplied: highest, high (TF32) or medium (bfloat16); auto: as LibTorch has it",
        "OptionEffects.ProductsOfMatricesAreAsPreciseAsAsked");
  visit(MUSTER_FIELD(num_nodes), "number of nodes that launch() expects", "Launcher.AnotherNumberOfNodesIsRefused");
  visit(MUSTER_FIELD(timeout),
        "longest wait for other ranks, in a collective and in the rendezvous; 0: as the program says",
        "Launcher.ATimeOutReachesTheGroupAndTheMeeting", {.unit = "seconds", .aliases = {"timeout_seconds"}});
  visit(MUSTER_FIELD(two_level_sums),
        "the backend hierarchical adds up on each host first, and then the hosts' sums; not bit-identical to gloo",
        "Launcher.SumsOfTwoLevelsAreChosen");
}

/// Calls visit(name, accessor, help, test of its effect[, description of the rest]) for the options of data and files.
template <class Visit>
void visit_data_options(Visit&& visit) {
  visit(MUSTER_FIELD(dispatch_batches),
        "rank 0 alone reads the data and sends each rank its batches; auto: as each loader's options say",
        "BothApis.StreamsAreDispatchedAndGeneratorsKeptInStepWhereAsked");
  visit(MUSTER_FIELD(even_batches), "every rank gets the same number of batches of the same size",
        "BothApis.CountEachSampleOnceInAWholeEvaluation");
  visit(MUSTER_FIELD(project.automatic_checkpoint_naming),
        "save_state() and load_state() use numbered folders unless they are given one",
        "Saving.NumbersGoOnAfterTheHighestAndOldOnesGo");
  visit(MUSTER_FIELD(project.directory), "folder of the program's files",
        "Saving.NumbersGoOnAfterTheHighestAndOldOnesGo", {.aliases = {"project_dir"}});
  visit(MUSTER_FIELD(project.storage), "a CheckpointStorage, used instead of folders",
        "OwnStorage.TrainingResumesFromItOnAnotherNumberOfRanks");
  visit(MUSTER_FIELD(project.total_limit), "number of numbered checkpoints to keep; 0: all",
        "Saving.NumbersGoOnAfterTheHighestAndOldOnesGo");
  visit(MUSTER_FIELD(split_batches), "a loader's batch_size is that of all ranks together",
        "Evaluation.CountsEachSampleOnceAndInOrderInEveryConfiguration");
  visit(MUSTER_FIELD(synced_generators.cpu), "the CPU generator gets rank 0's state when a pass begins",
        "BothApis.StreamsAreDispatchedAndGeneratorsKeptInStepWhereAsked");
  visit(MUSTER_FIELD(synced_generators.device), "the device's generator gets rank 0's state when a pass begins",
        "SharedRandom.GeneratorsOnRequest");
}

/// Calls visit(name, accessor, help, test of its effect[, description of the rest]) for the options of training.
template <class Visit>
void visit_training_options(Visit&& visit) {
  visit(MUSTER_FIELD(fp32_modules), "submodules whose parameters stay in float32",
        "HalfOnCpu.TrueHalfCastsParametersAndKeepsNamedModules");
  visit(MUSTER_FIELD(grad_scaler.backoff_factor),
        "the loss scale is multiplied by this after gradients that are not finite",
        "OptionEffects.TheLossScaleFollowsItsOptions");
  visit(MUSTER_FIELD(grad_scaler.enabled), "scale losses under 16-mixed",
        "OptionEffects.TheLossScaleFollowsItsOptions");
  visit(MUSTER_FIELD(grad_scaler.growth_factor),
        "the loss scale is multiplied by this after growth_interval steps with finite gradients",
        "OptionEffects.TheLossScaleFollowsItsOptions");
  visit(MUSTER_FIELD(grad_scaler.growth_interval), "steps with finite gradients before the loss scale grows",
        "GradScaler.DoesAsPyTorchStepByStep");
  visit(MUSTER_FIELD(grad_scaler.init_scale), "first loss scale", "OptionEffects.TheLossScaleFollowsItsOptions");
  visit(MUSTER_FIELD(gradient_accumulation.adjust_scheduler), "schedules count micro-batches",
        "Options.SchedulesInMicroBatches");
  visit(MUSTER_FIELD(gradient_accumulation.num_steps), "number of micro-batches in a window",
        "Options.OneNumberOfMicroBatches", {.aliases = {"accumulate_grad_batches", "gradient_accumulation_steps"}});
  visit(MUSTER_FIELD(gradient_accumulation.sync_each_batch), "communicate gradients in every micro-batch",
        "Accumulation.EveryBatchMayCommunicate");
  visit(MUSTER_FIELD(gradient_accumulation.sync_with_dataloader), "the last batch of a loader ends the window",
        "AccumulationCase.EndsWindowsAsTheReferenceDoes");
  visit(MUSTER_FIELD(gradient_accumulation.weighting), "how the gradients of a window are combined",
        "Weighting.SumAddsUpAndFixedDividesByTheNumberOfSteps");
  visit(MUSTER_FIELD(precision), "precision of parameters and computation, such as bf16-mixed",
        "Launcher.ARequestFillsADefaultAndMustNotContradict", {.aliases = {"mixed_precision"}});
  visit(
      MUSTER_FIELD(recompute.blocks),
      "blocks whose activations backward makes again: classes or names of submodules, or auto for the units of sharded "
      "training and repeated blocks",
      "RecomputeWorld.EveryStrategyGetsTheSameBits", {.variable = "MUSTER_RECOMPUTE", .aliases = {"recompute"}});
  visit(MUSTER_FIELD(recompute.budget_mib),
        "MiB that activations of blocks may take: only blocks that exceed it are made again, those with the least time "
        "first; 0: all",
        "RecomputeBudget.TheChoiceIsTheBestOfAllSubsets");
  visit(MUSTER_FIELD(recompute.check),
        "compare what is made again with what it was made from, in the first step of each block",
        "Recompute.AnOperatorThatWritesInSecretIsNamed");
  visit(MUSTER_FIELD(recompute.every), "make the activations of every n-th block again", "Recompute.EveryNthBlock");
  visit(MUSTER_FIELD(recompute.keep),
        "operators whose results are kept in blocks: matmul, attention, convolution, or an operator's name",
        "Recompute.KeepsTheResultsOfNamedOperators");
  visit(MUSTER_FIELD(recompute.types), "classes whose modules are blocks", "Recompute.BlocksAreChosenByType",
        {.code_only = true});
  visit(MUSTER_FIELD(step_scheduler_with_optimizer), "a scheduler steps only if its optimizer has stepped",
        "Options.SchedulesInMicroBatches");
  visit(MUSTER_FIELD(strategy), "strategy of training, such as ddp or fsdp; its options begin with ddp. and fsdp.",
        "Strategies.AreMadeByName");
}

/// Calls visit(name, accessor, description) for each option of a program, apart from those of a strategy.
template <class Visit>
void visit_options(Visit&& visit) {
  const auto describe = [&](const char* name, auto get, const char* help, const char* tested_by,
                            options::Description rest = {}) {
    rest.help = help;
    rest.tested_by = tested_by;
    visit(name, get, rest);
  };
  visit_placement_options(describe);
  visit_data_options(describe);
  visit_training_options(describe);
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
