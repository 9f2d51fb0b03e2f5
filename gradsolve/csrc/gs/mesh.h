// A recorded mesh, read by the lanes of a pack. Times are the user's: they run from t0 to t1 in
// either direction.

#pragma once

#include "gs/lanes.h"

namespace gs {

struct Mesh {
  const Scalar* times;
  Lanes lanes;
  Real t0;
  Real end;  // where the last recorded step ends: t1, or the last time that was reached
  Real direction;
  I32 num_steps;  // none past the end of the ensemble
  Mask succeeded;

  template <class Arguments>
  GS_FN Mesh(const Arguments& a, const Lanes& where) : times(a.times), lanes(where) {
    t0 = load_time(a.t0, lanes);
    const Real t1 = load_time(a.t1, lanes);
    direction = select(t1 < t0, Real(-1), Real(1));
    num_steps = select(lanes.valid, load<I32>(a.num_steps, 0, lanes), I32(0));
    succeeded = load<I32>(a.status, 0, lanes) == I32(0);
    end = t1;
    if (!all(succeeded)) {  // the load waits for that of num_steps, and is rarely needed
      const Real reached = load_rows<Real>(times, num_steps, lanes);
      end = select(succeeded, t1, select(num_steps == I32(0), t0, reached));
    }
    end = select(lanes.valid, end, t0);  // where a loop in the field is known to come back
  }

  GS_FN Mask takes(int32_t row) const { return I32(row) < num_steps; }

  // Start and end of step `row`; past the last step both are the end.
  GS_FN Real start(int32_t row) const {
    if (row == 0) return select(takes(0), t0, end);
    return interior(row, times_of(row));
  }
  GS_FN Real finish(int32_t row) const { return finish(row, times_of(row + 1)); }

  // The same for a caller that goes from row to row and keeps the address of times_of(row + 1).
  GS_FN Real finish(int32_t row, const Scalar* following) const {
    return interior(row + 1, following);
  }

  GS_FN const Scalar* times_of(int32_t row) const { return times + row * lanes.total; }

 private:
  // Where step `row` starts; rows past the end of a lane's mesh need not exist.
  GS_FN Real interior(int32_t row, const Scalar* times_of_row) const {
    const Mask there = takes(row);
#if GS_LANES == 1
    return there ? load<Real>(times_of_row, 0, lanes) : end;
#else
    if (all(there)) return load<Real>(times_of_row, 0, lanes);
    return select(there, load_rows<Real>(times, min(I32(row), num_steps), lanes), end);
#endif
  }
};

}  // namespace gs
