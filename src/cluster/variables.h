#pragma once  // for other rooms

/// The names of all environment variables that Muster writes or reads between launcher and ranks.
/// docs/howto/environment.md explains each of them.
namespace muster::cluster {

// The rank's identity, under the names that torchrun uses, so that PyTorch programs understand them too.
inline constexpr const char* kRank = "RANK";
inline constexpr const char* kWorldSize = "WORLD_SIZE";
inline constexpr const char* kLocalRank = "LOCAL_RANK";
inline constexpr const char* kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr const char* kNodeRank = "GROUP_RANK";
inline constexpr const char* kNodes = "GROUP_WORLD_SIZE";
inline constexpr const char* kMainAddress = "MASTER_ADDR";
inline constexpr const char* kMainPort = "MASTER_PORT";

/// Set by Kubernetes in a pod of an Indexed Job: its number, from 0.
inline constexpr const char* kCompletionIndex = "JOB_COMPLETION_INDEX";

// Our own launcher.
inline constexpr const char* kJob = "MUSTER_JOB";  ///< if set, our launcher started the process
inline constexpr const char* kJobStart =
    "MUSTER_JOB_START";  ///< when the job began, before all restarts: milliseconds since 1970
inline constexpr const char* kStoreFd = "MUSTER_STORE_FD";    ///< rank 0: listening socket for the store
inline constexpr const char* kReportFd = "MUSTER_REPORT_FD";  ///< memory for a rank's reports to its launcher
inline constexpr const char* kForkServer =
    "MUSTER_FORK_SERVER";  ///< "DESCRIPTOR:TOKEN" of the socket of a fork server, which removes the variable
inline constexpr const char* kDeviceIndex = "MUSTER_DEVICE_INDEX";      ///< index of this rank's accelerator
inline constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";  ///< a rank's own, if it names MIG devices
inline constexpr const char* kRestartCount = "MUSTER_RESTART_COUNT";    ///< how often the ranks were started again
inline constexpr const char* kSecret = "MUSTER_SECRET";                 ///< the secret shared by the ranks of the job
inline constexpr const char* kSecretFile = "MUSTER_SECRET_FILE";        ///< a file that contains it

// Under torchrun's name, beside ours.
inline constexpr const char* kTorchRestartCount = "TORCHELASTIC_RESTART_COUNT";

// Read by the launcher.
inline constexpr const char* kForkRanks = "MUSTER_FORK_RANKS";  ///< whether ranks are forked from one process

// Read by every rank.
inline constexpr const char* kLog = "MUSTER_LOG";  ///< trace, debug, info, warn, error, off

}  // namespace muster::cluster
