#pragma once  // for other rooms

/// The names of all environment variables that Muster uses between launcher and ranks, which rooms of all levels read.
/// docs/howto/environment.md explains each of them.
namespace muster::cluster {

// Variables with the rank's identity. They have torchrun's names, so that PyTorch programs understand them too.
inline constexpr const char* kRank = "RANK";
inline constexpr const char* kWorldSize = "WORLD_SIZE";
inline constexpr const char* kLocalRank = "LOCAL_RANK";
inline constexpr const char* kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr const char* kNodeRank = "GROUP_RANK";
inline constexpr const char* kNodes = "GROUP_WORLD_SIZE";
inline constexpr const char* kMainAddress = "MASTER_ADDR";
inline constexpr const char* kMainPort = "MASTER_PORT";

/// Index of a pod in an Indexed Job, from 0; set by Kubernetes
inline constexpr const char* kCompletionIndex = "JOB_COMPLETION_INDEX";

// Variables of Muster's launcher.
inline constexpr const char* kJob = "MUSTER_JOB";  ///< id of the job; if set, Muster's launcher started the process
inline constexpr const char* kJobStart =
    "MUSTER_JOB_START";  ///< time when the job began, before all restarts, in milliseconds since 1970
inline constexpr const char* kStoreFd = "MUSTER_STORE_FD";    ///< listening socket for the store, on rank 0
inline constexpr const char* kReportFd = "MUSTER_REPORT_FD";  ///< memory page for a rank's reports to its launcher
inline constexpr const char* kForkServer =
    "MUSTER_FORK_SERVER";  ///< "DESCRIPTOR:TOKEN" of a fork server's socket; the server removes the variable
inline constexpr const char* kDeviceIndex = "MUSTER_DEVICE_INDEX";      ///< index of this rank's accelerator
inline constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";  ///< MIG device of a rank, if it has one
inline constexpr const char* kRestartCount = "MUSTER_RESTART_COUNT";    ///< number of restarts of the ranks
inline constexpr const char* kSecret = "MUSTER_SECRET";                 ///< secret shared by the ranks of the job
inline constexpr const char* kSecretFile = "MUSTER_SECRET_FILE";        ///< file with the secret

// The number of restarts under torchrun's name.
inline constexpr const char* kTorchRestartCount = "TORCHELASTIC_RESTART_COUNT";

// Variables that the launcher reads.
inline constexpr const char* kForkRanks = "MUSTER_FORK_RANKS";  ///< boolean: fork the ranks from one process

// Variables that every rank reads.
inline constexpr const char* kLog = "MUSTER_LOG";  ///< log level: trace, debug, info, warn, error, off

}  // namespace muster::cluster
