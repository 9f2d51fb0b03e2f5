// Explicit Runge-Kutta methods: one stage loop for every tableau, its dense output, and the adjoint
// of both.
//
//   k_i = f(t + c_i h, Y_i),  Y_i = y + h sum_{j<i} a_ij k_j,  y1 = y + h sum_i b_i k_i,
//   y(t + theta h) = y + h sum_i b_i(theta) k_i
//
// A problem P supplies the dimension, the field, its pullback and a tableau: tables of constants,
// with the extra stages of the dense output behind the stages of the method. The stage loops are
// unrolled at compile time, so a zero coefficient costs nothing.

#pragma once

#include "gs/stages.h"

namespace gs {

// How many bytes of stages the adjoint keeps in registers; see recompute_arguments(). A CPU has too
// few registers for either, and its stack is close.
#ifndef GS_KEEP_BOTH_BELOW
#define GS_KEEP_BOTH_BELOW (GS_CUDA ? 400 : 1 << 30)
#endif
constexpr int kKeepBothBelow = GS_KEEP_BOTH_BELOW;
constexpr int kKeepOneBelow = 512;

template <class P>
struct ExplicitRK : Stages<P> {
  using Base = Stages<P>;
  using T = typename P::Tableau;
  using Parameters = typename P::Parameters;
  using OutputCotangents = typename Base::OutputCotangents;
  static constexpr int dim = P::dim;
  static constexpr int stages = T::stages;
  static constexpr int all_stages = T::stages + T::extra;

  // ---- The step --------------------------------------------------------------------------------

  template <int I>
  GS_FN static void evaluate(const Parameters& p, Real t0, Real t1, const Real* y, Real (*k)[dim]) {
    Real at[dim];
    Base::stage_argument(Index<I>{}, y, t1 - t0, k, at);
    P::field(p, Base::stage_time(Index<I>{}, t0, t1), at, k[I]);
  }

  // The first stage of the first step; later ones are the last stage of the step before if the
  // method is first-same-as-last.
  GS_FN static void first_stage(const Parameters& p, Real t, const Real* y, Real* k) {
    P::field(p, t, y, k);
  }

  // The stages after the first, and the end state.
  GS_FN static void step(const Parameters& p, Real t0, Real t1, const Real* y, Real (*k)[dim],
                         Real* y1) {
    const Real h = t1 - t0;
    static_for<stages>([&](auto i) GS_LAMBDA {
      constexpr int I = decltype(i)::value;
      if constexpr (I > 0) {
        Real at[dim];
        Base::stage_argument(i, y, h, k, at);
        P::field(p, Base::stage_time(i, t0, t1), at, k[I]);
        if constexpr (T::fsal && I == stages - 1) {
          for_each<dim>([&](auto c) GS_LAMBDA { y1[c] = at[c]; });
        }
      }
    });
    if constexpr (!T::fsal) Base::end_state(y, h, k, y1);
  }

  // ---- Dense output ----------------------------------------------------------------------------

  GS_FN static void extra_stages(const Parameters& p, Real t0, Real t1, const Real* y,
                                 Real (*k)[dim]) {
    static_for<T::extra>([&](auto i)
                             GS_LAMBDA { evaluate<stages + decltype(i)::value>(p, t0, t1, y, k); });
  }

  // ---- The adjoint -----------------------------------------------------------------------------
  //
  // Given the cotangent lambda of y1 and cotangents c_m of the outputs y(theta_m), for i from s
  // down to 1:
  //
  //   kbar_i = h (b_i lambda + sum_m b_i(theta_m) c_m + sum_{j>i} a_ji w_j),
  //   w_i, thetabar += (df/dy, df/dtheta)(t + c_i h, Y_i)^T kbar_i,
  //
  // and then ybar = lambda + sum_m c_m + sum_i w_i. Times: the stage times t0 + c_i h receive the
  // cotangents taubar_i of the field's time; the factors h before the sums receive
  //
  //   hbar = lambda^T sum_i b_i k_i + sum_m c_m^T sum_i b_i(theta_m) k_i
  //          + sum_i w_i^T sum_j a_ij k_j,
  //
  // and an output time t_m = t0 + theta_m h receives u_m = c_m^T sum_i b_i'(theta_m) k_i, of which
  // t0 gets (theta_m - 1) u_m and t1 gets -theta_m u_m, since dtheta/dt_m = 1/h.
  //
  // From the forward sweep the Y_i are kept, and the k_i only where times or outputs need them;
  // kbar_i is summed up when it is needed, from the w_j. So Y_1..Y_i and w_i+1..w_s are alive at
  // once. At the end of the forward sweep, though, it is all Y_i and all k_i. Where that is what
  // exceeds the registers of a GPU, the k_i are kept instead, and each Y_i is summed up again.

  static constexpr int bytes_of_stages = all_stages * dim * static_cast<int>(sizeof(Scalar));
  static constexpr bool fill_registers() { return 2 * bytes_of_stages > kKeepBothBelow; }
  static constexpr bool recompute_arguments() {
    return fill_registers() && bytes_of_stages <= kKeepOneBelow;
  }

  // Whether the end state depends on stage I, directly or through later stages.
  template <int I>
  static constexpr bool in_step() {
    bool used[all_stages] = {};
    for (int i = stages - 1; i >= 0; --i) {
      used[i] = T::b[i] != 0;
      for (int j = i + 1; j < stages; ++j) used[i] = used[i] || (used[j] && T::a[j][i] != 0);
    }
    return used[I];
  }

  // Whether the end state or an output depends on stage I.
  template <int I>
  static constexpr bool in_adjoint() {
    bool used[all_stages] = {};
    for (int i = all_stages - 1; i >= 0; --i) {
      used[i] = i < stages && T::b[i] != 0;
      for (int p = 0; p < T::degree; ++p) {
        used[i] = used[i] || (P::with_outputs && T::dense[i][p] != 0);
      }
      for (int j = i + 1; j < all_stages; ++j) used[i] = used[i] || (used[j] && T::a[j][i] != 0);
    }
    return used[I];
  }

  // Whether the value of stage I is needed: by the argument of a later stage, or by a time.
  template <int I>
  static constexpr bool value_in_adjoint() {
    if constexpr (P::with_times) return true;
    bool out = false;
    for (int j = I + 1; j < all_stages; ++j) {
      const bool later = j < stages || P::with_outputs;
      out = out || (later && T::a[j][I] != 0);
    }
    return out;
  }

  // The Y_i for the backward sweep, beside the k_i; with outputs in the step, also of the dense
  // output.
  struct Linearised {
    Real at[all_stages][dim];
  };

  GS_FN static void adj_forward(const Parameters& p, Real t0, Real t1, const Real* y,
                                bool outputs_here, Real (*k)[dim], Linearised& step) {
    Real(*const at)[dim] = step.at;
    static_for<all_stages>([&](auto i) GS_LAMBDA {
      constexpr int I = decltype(i)::value;
      if constexpr (in_adjoint<I>()) {
        if (in_step<I>() || outputs_here) {
          Real* const argument = at[recompute_arguments() ? 0 : I];
          Base::stage_argument(i, y, t1 - t0, k, argument);
          if constexpr (value_in_adjoint<I>()) {
            P::field(p, Base::stage_time(i, t0, t1), argument, k[I]);
          }
        }
      }
    });
  }

  // ct: cotangent of y1 on entry, of y on exit. ct_p accumulates; ct_t0 and ct_t1 are assigned.
  // Where the k_i are not needed any more, the w_i take their place: large states are in memory.
  GS_FN static void adj_step(const Parameters& p, Real t0, Real t1, const Real* y, Real (*k)[dim],
                             const Linearised& step, bool outputs_here,
                             const OutputCotangents* outputs, Real* ct, Real& ct_t0, Real& ct_t1,
                             Real* ct_p) {
    const Real(*const at)[dim] = step.at;
    const Real h = t1 - t0;
    constexpr bool needs_k = P::with_times || recompute_arguments();
    [[maybe_unused]] Real apart[needs_k ? all_stages : 1][dim];
    Real(*const w)[dim] = needs_k ? apart : k;
    ct_t0 = ct_t1 = Real(0);
    if constexpr (P::with_times) {
      Real ct_h(0);
      static_for<stages>([&](auto i) GS_LAMBDA {
        constexpr Scalar b = T::b[decltype(i)::value];
        if constexpr (b != 0) {
          Real along(0);
          for_each<dim>([&](auto c) GS_LAMBDA { along = fma(ct[c], k[i][c], along); });
          ct_h = fma(Real(b), along, ct_h);
        }
      });
      ct_t0 = -ct_h;
      ct_t1 = ct_h;
      if constexpr (P::with_outputs) {
        if (outputs_here) {
          ct_t0 = ct_t0 + outputs->t0;
          ct_t1 = ct_t1 + outputs->t1;
        }
      }
    }
    static_for_down<all_stages>([&](auto i) GS_LAMBDA {
      constexpr int I = decltype(i)::value;
      if constexpr (in_adjoint<I>()) {
        if (in_step<I>() || outputs_here) {
          Real kbar[dim];
          for_each<dim>([&](auto c) GS_LAMBDA {
            Real sum(0);
            if constexpr (I < stages) sum = Real(T::b[I]) * ct[c];
            static_for<all_stages>([&](auto j) GS_LAMBDA {
              constexpr int J = decltype(j)::value;
              if constexpr (J > I && in_adjoint<J>()) {
                constexpr Scalar weight = T::a[J][I];
                if constexpr (weight != 0) sum = fma(Real(weight), w[J][c], sum);
              }
            });
            if constexpr (P::with_outputs && Base::in_dense_output(I)) {
              if (outputs_here) sum = outputs->reach(i, sum, c);
            }
            kbar[c] = h * sum;
          });
          Real ct_tau(0);
          if constexpr (recompute_arguments()) {
            Real argument[dim];
            Base::stage_argument(i, y, hidden(h), k, argument);
            P::pull(p, Base::stage_time(i, t0, t1), argument, kbar, w[I], ct_tau, ct_p);
          } else {
            P::pull(p, Base::stage_time(i, t0, t1), at[I], kbar, w[I], ct_tau, ct_p);
          }
          if constexpr (P::with_times) {
            constexpr Scalar c_i = T::c[I];
            Real ct_h(0);
            static_for<I>([&](auto j) GS_LAMBDA {
              constexpr Scalar weight = T::a[I][decltype(j)::value];
              if constexpr (weight != 0) {
                Real along(0);
                for_each<dim>([&](auto c) GS_LAMBDA { along = fma(w[I][c], k[j][c], along); });
                ct_h = fma(Real(weight), along, ct_h);
              }
            });
            ct_t0 = ct_t0 + Real(1 - c_i) * ct_tau - ct_h;
            ct_t1 = ct_t1 + Real(c_i) * ct_tau + ct_h;
          }
        } else {
          for_each<dim>([&](auto c) GS_LAMBDA { w[I][c] = Real(0); });
        }
      }
    });
    for_each<dim>([&](auto c) GS_LAMBDA {
      static_for_down<all_stages>([&](auto i) GS_LAMBDA {
        if constexpr (in_adjoint<decltype(i)::value>()) ct[c] = ct[c] + w[i][c];
      });
      if constexpr (P::with_outputs) {
        if (outputs_here) ct[c] = ct[c] + outputs->moment(0, c);
      }
    });
  }
};

}  // namespace gs
