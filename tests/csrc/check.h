// What the test programs share: checks that report and go on, and comparisons bit for bit.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "gs/lanes.h"

inline int failures = 0;

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      ++failures;                                                              \
      std::fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
    }                                                                          \
  } while (false)

// Equal bits; any nan equals any other, for its payload is not specified.
template <class T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0 || (a != a && b != b);
}

template <class T>
bool same(const T* a, const T* b, int count) {
  for (int i = 0; i < count; ++i) {
    if (!same(a[i], b[i])) return false;
  }
  return true;
}
