/* Microseconds of one collective of MPI, measured as in collectives_bench.cpp. mpirun starts all ranks; rank 0 is asked. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct wanted {
  char operation[32], dtype[32], place[32];
  long bytes;
};

static int rank_, size_;

static double slowest(double seconds) {
  double most = 0;
  MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return most;
}

static double barriers(void) {
  enum { kTimes = 1000 };
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  for (int i = 0; i < kTimes; ++i) MPI_Barrier(MPI_COMM_WORLD);
  return slowest(MPI_Wtime() - begin) / kTimes * 1e6;
}

/* Ours in shared memory gathers in place: so may MPI. */
static int is_in_place(const struct wanted* wanted) {
  return strcmp(wanted->operation, "all_gather") == 0 && strcmp(wanted->place, "shared") == 0;
}

/* Seconds of so many operations, each after a write of the tensor; or of the writes alone. */
static double loop(const struct wanted* wanted, const void* own, void* tensor, void* gathered, long times, int communicates) {
  const int all_reduce = strcmp(wanted->operation, "all_reduce") == 0;
  const void* given = is_in_place(wanted) ? MPI_IN_PLACE : tensor;
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  for (long i = 0; i < times; ++i) {
    memcpy(tensor, own, wanted->bytes);
    if (!communicates) continue;
    if (all_reduce) MPI_Allreduce(MPI_IN_PLACE, tensor, (int)(wanted->bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else MPI_Allgather(given, (int)wanted->bytes, MPI_BYTE, gathered, (int)wanted->bytes, MPI_BYTE, MPI_COMM_WORLD);
  }
  return MPI_Wtime() - begin;
}

/* Every rank gives rank + 1 in each float; of other types only the bits matter, which are gathered. */
static double measure(const struct wanted* wanted, int* right) {
  const long count = wanted->bytes / 4, fit = (64L << 20) / (wanted->bytes > 0 ? wanted->bytes : 1);
  const long times = fit < 4 ? 4 : fit > 400 ? 400 : fit;
  float *own = malloc(wanted->bytes), *separate = malloc(wanted->bytes), *gathered = malloc(wanted->bytes * size_);
  float* tensor = is_in_place(wanted) ? gathered + rank_ * count : separate;
  for (long i = 0; i < count; ++i) own[i] = (float)(rank_ + 1);
  loop(wanted, own, tensor, gathered, times, 1);
  const double both = loop(wanted, own, tensor, gathered, times, 1);
  const int all_reduce = strcmp(wanted->operation, "all_reduce") == 0;
  const float sum = (float)(size_ * (size_ + 1) / 2);
  *right = count > 0;
  for (long i = 0; all_reduce && i < count; ++i) *right &= tensor[i] == sum;
  for (int peer = 0; !all_reduce && peer < size_; ++peer)
    for (long i = 0; i < count; ++i) *right &= gathered[peer * count + i] == (float)(peer + 1);
  const double writes = loop(wanted, own, tensor, gathered, times, 0);
  free(own), free(separate), free(gathered);
  const double seconds = both - writes > 1e-9 ? both - writes : 1e-9;
  MPI_Allreduce(MPI_IN_PLACE, right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return slowest(seconds) / (double)times * 1e6;
}

static void answer(const char* line) {
  struct wanted wanted = {.dtype = "float32"};
  sscanf(line, "run %31s %31s %ld %31s", wanted.operation, wanted.dtype, &wanted.bytes, wanted.place);
  int right = 1;
  const int is_barrier = strcmp(wanted.operation, "barrier") == 0;
  const double value = is_barrier ? barriers() : measure(&wanted, &right);
  if (rank_ == 0) {
    printf("{\"value\": %.9g, \"check\": %d, \"verified\": %s}\n", value, is_barrier ? 1 : size_ * (size_ + 1) / 2,
           right ? "true" : "false");
    fflush(stdout);
  }
}

/* The next free core of those that the driver gave. */
static void stay_on_one_core(void) {
  cpu_set_t given, one;
  if (sched_getaffinity(0, sizeof given, &given) != 0 || CPU_COUNT(&given) < size_) return;
  int left = rank_, core = 0;
  while (!CPU_ISSET(core, &given) || left-- > 0) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);
}

/* A rank that waits in MPI_Bcast takes a whole core from the contender that is measured meanwhile. */
static void broadcast_asleep(void* data, int bytes) {
  const struct timespec pause = {.tv_nsec = 500000};
  MPI_Request request;
  MPI_Ibcast(data, bytes, MPI_CHAR, 0, MPI_COMM_WORLD, &request);
  for (int done = 0;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) return;
    nanosleep(&pause, NULL);
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  stay_on_one_core();
  for (char line[256];;) {
    int goes_on = rank_ != 0 || fgets(line, sizeof line, stdin) != NULL;
    broadcast_asleep(&goes_on, sizeof goes_on);
    if (!goes_on) break;
    broadcast_asleep(line, sizeof line);
    if (strncmp(line, "run ", 4) == 0) answer(line);
  }
  MPI_Finalize();
  return 0;
}
