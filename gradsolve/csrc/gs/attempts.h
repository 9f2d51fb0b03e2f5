// Which attempts of a recording were accepted: bit `attempt % 32` of word `attempt / 32`.
//
// Trajectories in lockstep have made equally many attempts at any time, but accepted different
// numbers of them. A recording that stores every state stores it in the row of its attempt, so that
// these trajectories write side by side; here the adjoint finds out which rows are steps.

#pragma once

#include "gs/lanes.h"

namespace gs {

class AttemptWriter {
 public:
  GS_FN AttemptWriter(uint32_t* array, const Lanes& where) : words(array), lanes(where), word(0) {}

  // Attempts are noted in their order, by lanes that have stopped as not accepted.
  GS_FN void note(int32_t attempt, Mask accepted) {
    word = word | select(accepted, U32(1u << (attempt % 32)), U32(0));
    if (attempt % 32 == 31) write(attempt);
  }

  GS_FN void finish(int32_t attempts) {
    if (attempts % 32 != 0) write(attempts);
  }

 private:
  GS_FN void write(int32_t attempt) {
    store(words, attempt / 32, lanes, word);
    word = U32(0);
  }

  uint32_t* words;
  Lanes lanes;
  U32 word;
};

// From the last accepted attempt of each lane to its first.
class AttemptReader {
 public:
  GS_FN AttemptReader(const uint32_t* array, I32 attempts, const Lanes& where)
      : words(array), lanes(where), block((attempts + I32(31)) / I32(32)), left(0) {}

  // The next one down, in the lanes that have one; 0 in others.
  GS_FN I32 previous(Mask there) {
    I32 out(0);
    GS_UNROLLED for (int l = 0; l < GS_LANES; ++l) {
      if (!lane(there, l)) continue;
      uint32_t bits = lane(left, l);
      int32_t at = lane(block, l);
      while (bits == 0) {
        --at;
        bits = words[at * lanes.total + index_of(lanes, l)];
      }
      const int32_t highest = 31 - count_leading_zeros(bits);
      set_lane(left, l, bits & ~(1u << highest));
      set_lane(block, l, at);
      set_lane(out, l, 32 * at + highest);
    }
    return out;
  }

 private:
  GS_FN static int32_t count_leading_zeros(uint32_t bits) {
#if GS_CUDA
    return __clz(static_cast<int32_t>(bits));
#else
    return __builtin_clz(bits);
#endif
  }

  const uint32_t* words;
  Lanes lanes;
  I32 block;
  U32 left;  // of the bits in this block
};

}  // namespace gs
