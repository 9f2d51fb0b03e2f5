// Entry points on a CPU: threads over packs of trajectories.

#pragma once

#include <pthread.h>

#include "gs/adjoint.h"
#include "gs/record.h"
#include "gs/replay.h"

#define GS_EXPORT extern "C" __attribute__((visibility("default")))

namespace gs {

// Trajectories whose shared cotangents are summed together, in one order whatever the number of
// threads. The host allocates one row of `partial` for each.
constexpr int64_t kGroup = 256;

template <class Work>
struct Crew {
  const Work* work;
  int64_t tasks;
  int64_t next;

  static void* run(void* self) {
    Crew& crew = *static_cast<Crew*>(self);
    for (;;) {
      const int64_t task = __atomic_fetch_add(&crew.next, 1, __ATOMIC_RELAXED);
      if (task >= crew.tasks) return nullptr;
      (*crew.work)(task);
    }
  }
};

// work(0), ..., work(tasks - 1) on at most `threads` threads, this one among them. A thread that
// cannot be started is done without.
template <class Work>
void in_parallel(int64_t tasks, int64_t threads, const Work& work) {
  constexpr int64_t kMaxThreads = 256;
  Crew<Work> crew{&work, tasks, 0};
  if (threads > tasks) threads = tasks;
  if (threads > kMaxThreads) threads = kMaxThreads;
  pthread_t others[kMaxThreads];
  int64_t started = 0;
  while (started < threads - 1 &&
         pthread_create(&others[started], nullptr, Crew<Work>::run, &crew) == 0) {
    ++started;
  }
  Crew<Work>::run(&crew);
  for (int64_t i = 0; i < started; ++i) pthread_join(others[i], nullptr);
}

// body(lanes) for every pack of trajectories from `begin` to `end`.
template <class Body>
void for_packs(int64_t begin, int64_t end, int64_t total, const Body& body) {
  if (end > total) end = total;
  for (int64_t first = begin; first < end; first += GS_LANES) body(lanes_from(first, total));
}

// Small enough to keep the threads evenly busy, large enough to be worth fetching.
constexpr int64_t kTask = 64;

template <class P>
void record_on_host(const RecordArguments<P::num_leaves>& a, int64_t threads) {
  in_parallel((a.lanes + kTask - 1) / kTask, threads, [&](int64_t task) {
    for_packs(task * kTask, (task + 1) * kTask, a.lanes,
              [&](const Lanes& lanes) { record<P>(a, lanes); });
  });
}

template <class P>
void replay_on_host(const ReplayArguments<P::num_leaves>& a, int64_t threads) {
  in_parallel((a.lanes + kTask - 1) / kTask, threads, [&](int64_t task) {
    for_packs(task * kTask, (task + 1) * kTask, a.lanes,
              [&](const Lanes& lanes) { replay<P>(a, lanes, lanes); });
  });
}

template <class P>
void adjoint_on_host(const AdjointArguments<P::num_leaves, P::num_wanted>& a, int64_t threads) {
  constexpr int entries = P::num_cotangents;
  const int64_t groups = (a.lanes + kGroup - 1) / kGroup;
  in_parallel(groups, threads, [&](int64_t group) {
    Real sum[entries > 0 ? entries : 1], ct_p[entries > 0 ? entries : 1];
    for (int e = 0; e < entries; ++e) sum[e] = Real(0);
    for_packs(group * kGroup, (group + 1) * kGroup, a.lanes, [&](const Lanes& lanes) {
      adjoint<P>(a, lanes, lanes, ct_p);
      for (int e = 0; e < entries; ++e) sum[e] = sum[e] + ct_p[e];
    });
    for (int e = 0; e < entries; ++e) {
      Scalar total = 0;
      for (int l = 0; l < GS_LANES; ++l) total += lane(sum[e], l);
      a.partial[group * entries + e] = total;
    }
  });
  for (int leaf = 0; leaf < P::num_wanted; ++leaf) {
    if (a.ct_leaves.leaf[leaf].per_lane) continue;
    Scalar* out = static_cast<Scalar*>(a.ct_leaves.leaf[leaf].data);
    for (int e = P::wanted_begin[leaf]; e < P::wanted_begin[leaf + 1]; ++e) {
      Scalar total = 0;
      for (int64_t group = 0; group < groups; ++group) total += a.partial[group * entries + e];
      out[e - P::wanted_begin[leaf]] = total;
    }
  }
}

}  // namespace gs
