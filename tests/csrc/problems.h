// Methods and fields written by hand, in the form in which gradsolve generates them.

#pragma once

#include <atomic>

#include "gs/explicit_rk.h"

using gs::for_each, gs::lane, gs::set_lane;
using gs::I32, gs::Mask, gs::Real, gs::Scalar;

// ---- Methods -----------------------------------------------------------------------------------

// Order 2, with the Euler method embedded; the dense output is Hermite's and takes one more stage.
struct Heun {
  static constexpr int order = 2;
  static constexpr int stages = 2, extra = 1, degree = 3;
  static constexpr bool fsal = false, adaptive = true;
  static constexpr Scalar c[3] = {0, 1, 1};
  static constexpr Scalar a[3][3] = {{0, 0, 0}, {1, 0, 0}, {0.5, 0.5, 0}};
  static constexpr Scalar b[2] = {0.5, 0.5};
  static constexpr Scalar b_error[2] = {-0.5, 0.5};
  static constexpr Scalar dense[3][3] = {{1, -0.5, 0}, {0, 1.5, -1}, {0, -1, 1}};
};

// Bogacki and Shampine's method of order 3: the last stage is the first one of the next step.
struct Bosh3 {
  static constexpr int order = 3;
  static constexpr int stages = 4, extra = 0, degree = 3;
  static constexpr bool fsal = true, adaptive = true;
  static constexpr Scalar c[4] = {0, 0.5, 0.75, 1};
  static constexpr Scalar b[4] = {Scalar(2) / 9, Scalar(1) / 3, Scalar(4) / 9, 0};
  static constexpr Scalar a[4][4] = {
      {0, 0, 0, 0}, {0.5, 0, 0, 0}, {0, 0.75, 0, 0}, {b[0], b[1], b[2], 0}};
  static constexpr Scalar b_error[4] = {Scalar(-5) / 72, Scalar(1) / 12, Scalar(1) / 9, -0.125};
  static constexpr Scalar dense[4][3] = {{1, 3 * b[0] - 2, 1 - 2 * b[0]},
                                         {0, 3 * b[1], -2 * b[1]},
                                         {0, 3 * b[2], -2 * b[2]},
                                         {0, -1, 1}};
};

// The classical method of order 4, without an error estimate; its output is a straight line.
struct RK4 {
  static constexpr int order = 4;
  static constexpr int stages = 4, extra = 0, degree = 1;
  static constexpr bool fsal = false, adaptive = false;
  static constexpr Scalar c[4] = {0, 0.5, 0.5, 1};
  static constexpr Scalar a[4][4] = {{0, 0, 0, 0}, {0.5, 0, 0, 0}, {0, 0.5, 0, 0}, {0, 0, 1, 0}};
  static constexpr Scalar b[4] = {Scalar(1) / 6, Scalar(1) / 3, Scalar(1) / 3, Scalar(1) / 6};
  static constexpr Scalar b_error[4] = {0, 0, 0, 0};
  static constexpr Scalar dense[4][1] = {{b[0]}, {b[1]}, {b[2]}, {b[3]}};
};

// ---- Fields ------------------------------------------------------------------------------------

template <int Num>
struct ScalarLeaves {
  Real p[Num];

  ScalarLeaves() = default;
  GS_FN ScalarLeaves(const gs::LeafArgument* leaves, const gs::Lanes& lanes) {
    for_each<Num>([&](auto i)
                      GS_LAMBDA { p[i] = gs::LeafView<Real, Scalar>(leaves[i], lanes)[0]; });
  }
};

// Whether a field was asked for its value where no trajectory has ever been. A field with a loop
// might not come back from there, whether or not its value is used.
inline std::atomic<bool> far_away{false};

GS_FN void watch(const Real* y, int dim) {
  for (int c = 0; c < dim; ++c) {
    for (int l = 0; l < GS_LANES; ++l) {
      if (std::fabs(lane(y[c], l)) > 1e6) far_away = true;
    }
  }
}

// x' = sigma (y - x), y' = x (rho - z) - y, z' = x y - beta z.
struct Lorenz {
  static constexpr int dim = 3, num_leaves = 3;
  using Parameters = ScalarLeaves<3>;

  GS_FN static void field(const Parameters& q, Real, const Real* y, Real* dy) {
    watch(y, dim);
    dy[0] = q.p[0] * (y[1] - y[0]);
    dy[1] = y[0] * (q.p[1] - y[2]) - y[1];
    dy[2] = y[0] * y[1] - q.p[2] * y[2];
  }

  GS_FN static void pull(const Parameters& q, Real, const Real* y, const Real* ct, Real* ct_y,
                         Real& ct_t, Real* ct_p) {
    watch(y, dim);
    ct_y[0] = -q.p[0] * ct[0] + (q.p[1] - y[2]) * ct[1] + y[1] * ct[2];
    ct_y[1] = q.p[0] * ct[0] - ct[1] + y[0] * ct[2];
    ct_y[2] = -y[0] * ct[1] - q.p[2] * ct[2];
    ct_t = Real(0);
    ct_p[0] = ct_p[0] + (y[1] - y[0]) * ct[0];
    ct_p[1] = ct_p[1] + y[0] * ct[1];
    ct_p[2] = ct_p[2] - y[2] * ct[2];
  }

  // The derivative of the field along (dq, dt, v).
  GS_FN static void push(const Parameters& q, Real, const Real* y, const Parameters& dq, Real,
                         const Real* v, Real* out) {
    out[0] = dq.p[0] * (y[1] - y[0]) + q.p[0] * (v[1] - v[0]);
    out[1] = v[0] * (q.p[1] - y[2]) + y[0] * (dq.p[1] - v[2]) - v[1];
    out[2] = v[0] * y[1] + y[0] * v[1] - dq.p[2] * y[2] - q.p[2] * v[2];
  }
};

// u' = p t u, w' = t - q w: linear, with a right-hand side that depends on time.
struct Linear {
  static constexpr int dim = 2, num_leaves = 2;
  using Parameters = ScalarLeaves<2>;

  GS_FN static void field(const Parameters& q, Real t, const Real* y, Real* dy) {
    dy[0] = q.p[0] * t * y[0];
    dy[1] = t - q.p[1] * y[1];
  }

  GS_FN static void pull(const Parameters& q, Real t, const Real* y, const Real* ct, Real* ct_y,
                         Real& ct_t, Real* ct_p) {
    ct_y[0] = q.p[0] * t * ct[0];
    ct_y[1] = -q.p[1] * ct[1];
    ct_t = q.p[0] * y[0] * ct[0] + ct[1];
    ct_p[0] = ct_p[0] + t * y[0] * ct[0];
    ct_p[1] = ct_p[1] - y[1] * ct[1];
  }

  GS_FN static void push(const Parameters& q, Real t, const Real* y, const Parameters& dq, Real dt,
                         const Real* v, Real* out) {
    out[0] = dq.p[0] * t * y[0] + q.p[0] * dt * y[0] + q.p[0] * t * v[0];
    out[1] = dt - dq.p[1] * y[1] - q.p[1] * v[1];
  }

  // The solution at t from y at time 0.
  static void exact(double p, double q, double t, const double* y, double* out) {
    out[0] = y[0] * std::exp(p * t * t / 2);
    out[1] = (y[1] + 1 / (q * q)) * std::exp(-q * t) + t / q - 1 / (q * q);
  }
};

// ---- Problems ----------------------------------------------------------------------------------

// What is asked for is a bit field: see the constants.
enum Asked { kOutputs = 1, kEnd = 2, kTimes = 4, kOutputTimes = 8, kSegments = 16 };

template <class Field, class Tableau_, int asked>
struct Problem : Field {
  using Tableau = Tableau_;
  using Parameters = typename Field::Parameters;
  using Method = gs::ExplicitRK<Problem>;
  static constexpr int num_wanted = Field::num_leaves, num_cotangents = Field::num_leaves;
  static constexpr int wanted_begin[4] = {0, 1, 2, 3};
  static constexpr bool with_outputs = asked & kOutputs, with_end = asked & kEnd;
  static constexpr bool with_times = asked & (kTimes | kOutputTimes);
  static constexpr bool with_output_times = asked & kOutputTimes;
  static constexpr bool with_segments = asked & kSegments;
  static constexpr bool with_dt0 = true;

  // A step size controller that is good enough here: the error within 1e-2, absolute and relative.
  struct ControllerState {
    I32 rejected_in_a_row;

    GS_FN static ControllerState select(Mask m, const ControllerState& a,
                                        const ControllerState& b) {
      return {gs::select(m, a.rejected_in_a_row, b.rejected_in_a_row)};
    }
  };

  GS_FN static void begin(const Parameters&, Real, Real t0, Real t1, Real dt0, const Real* y,
                          const Real* f0, Real& t_next, Real& floor, I32& status,
                          ControllerState& after) {
    Mask finite(true);
    for_each<Field::dim>(
        [&](auto c) GS_LAMBDA { finite = finite & gs::is_finite(y[c]) & gs::is_finite(f0[c]); });
    t_next = gs::min(t0 + dt0, t1);
    floor = t1;
    status = gs::select(finite, I32(0), I32(3));
    after.rejected_in_a_row = I32(0);
  }

  GS_FN static void judge(const Parameters&, Real, Real t1, Real, Real t, Real t_next,
                          const Real* y, const Real* y1, const Real* error,
                          const ControllerState& state, Mask& accepted, Mask& done, Real& t_after,
                          I32& status, ControllerState& after) {
    Real norm(0);
    for_each<Field::dim>([&](auto c) GS_LAMBDA {
      const Real size = gs::max(gs::abs(y[c]), gs::abs(y1[c]));
      norm = gs::max(norm, gs::abs(error[c]) / (Real(1e-2) + Real(1e-2) * size));
    });
    const Mask finite = gs::is_finite(norm);
    accepted = finite & (norm < Real(1));
    const Real factor = gs::min(gs::max(Real(0.8) / gs::sqrt(norm), Real(0.2)), Real(5));
    const Real next = gs::select(finite, factor, Real(0.2));
    const Real from = gs::select(accepted, t_next, t);
    done = accepted & (t_next >= t1);
    t_after = gs::min(from + (t_next - t) * next, t1);
    after.rejected_in_a_row = gs::select(accepted, I32(0), state.rejected_in_a_row + I32(1));
    const Mask stuck = after.rejected_in_a_row > I32(20);
    status = gs::select(stuck, gs::select(finite, I32(2), I32(3)), I32(0));
  }
};
