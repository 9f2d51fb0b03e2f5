// Output times inside a step.

#pragma once

#include "gs/lanes.h"

namespace gs {

// The output times of the lanes of a pack, turned so that they run forwards; padding is infinite.
struct OutputTimes {
  LeafView<Real, Scalar> ts;
  int32_t count;
  Lanes lanes;
  Real direction;

  // The time of output `index`, infinite past the last one.
  GS_FN Real forward(I32 index) const {
    const Real t = load(ts, max(min(index, I32(count - 1)), I32(0)));
    const Mask there = (index < I32(count)) & is_finite(t);
    return select(there, direction * t, Real(kInfinity));
  }
};

}  // namespace gs
