// Rosenbrock methods: one stage loop for every tableau, and its adjoint.
//
//   (M / gamma - h J) k_i = f(t + c_i h, Y_i) + M sum_{j<i} C_ij k_j + h d_i f_t,
//   Y_i = y + h sum_{j<i} a_ij k_j,  y1 = y + h sum_i b_i k_i,
//
// with J = df/dy and f_t = df/dt at the start of the step, and the mass matrix M of M y' = f. These
// are the published equations for u_i = h k_i, so that no division by h is left. A problem P
// supplies, beside the field, its derivatives, `jacobian`, and the pullback of what a stage adds to
// the sum over the stages before it, f(t + c_i h, Y_i) + h (J k_i + d_i f_t), `pull_stage`.

#pragma once

#include "gs/chains.h"
#include "gs/later_stages.h"
#include "gs/linear.h"
#include "gs/stages.h"

namespace gs {

template <class P>
struct Rosenbrock : Stages<P> {
  using Base = Stages<P>;
  using T = typename P::Tableau;
  using Parameters = typename P::Parameters;
  using OutputCotangents = typename Base::OutputCotangents;
  static constexpr int dim = P::dim;
  static constexpr int stages = T::stages;
  static constexpr int all_stages = T::stages + T::extra;
  static constexpr bool with_mass = P::with_mass;
  // Whether the stages are unrolled and live in registers, with all their components. Where not,
  // they are in memory, and a loop is compiled once for all of them. The CPU's limit is that of
  // unrolling.py for all methods, the GPU's the eight stages of the 16 components there.
  static constexpr bool unrolled = dim <= kMaxUnrolled && dim * T::stages <= (GS_CUDA ? 128 : 64);

  static constexpr Scalar mass(int i, int j) {
    if constexpr (P::with_mass) {
      return P::mass[i][j];
    } else {
      return i == j;
    }
  }

  // The same in a step of length zero, which must have a solution: it pads the mesh of a trajectory
  // that waits, and is the whole mesh of an empty window.
  static constexpr Scalar regular_mass(int i, int j) {
    if constexpr (P::singular_mass) {
      return P::regular_mass[i][j];
    } else {
      return mass(i, j);
    }
  }

  // Unknown `i` of the linear system is component order[i], so that few entries are filled in.
  static constexpr Order<dim> order{P::order};
  struct Pattern {
    static constexpr bool entry(int i, int j) {
      const int r = P::order[i], c = P::order[j];
      return P::depends[r][c] || mass(r, c) != 0 || regular_mass(r, c) != 0;
    }
  };
  using LinearSystem = Factors<dim, Pattern>;
  static constexpr Lists<dim> jacobian_columns{P::depends};

  // ---- The step --------------------------------------------------------------------------------

  // f(0), ..., f(stages - 1).
  template <class F>
  GS_FN static void for_stages(F&& f) {
    if constexpr (unrolled) {
      static_for<stages>(f);
    } else {
      for (int i = 0; i < stages; ++i) f(i);
    }
  }
  template <class F>
  GS_FN static void for_stages_down(F&& f) {
    if constexpr (unrolled) {
      static_for_down<stages>(f);
    } else {
      for (int i = stages - 1; i >= 0; --i) f(i);
    }
  }

  static constexpr Chains<T> chains{};

  // Whether Y_i is added up from the argument before it. From stages in memory it is not: they are
  // read for the other sum anyway, and the argument before would have to be kept.
  template <class I>
  GS_FN static constexpr bool goes_on(I i) {
    return unrolled && chains.goes_on[i];
  }

  // The value of the field at the start of the step; step() finds it in k[0].
  GS_FN static void first_stage(const Parameters& p, Real t, const Real* y, Real* k) {
    P::field(p, t, y, k);
  }

  // An entry of M / gamma.
  GS_FN static Real of_mass(Real h, int i, int j) {
    Real out = Real(T::inverse_gamma * mass(i, j));
    if constexpr (P::singular_mass) {
      out = select(h == Real(0), Real(T::inverse_gamma * regular_mass(i, j)), out);
    }
    return out;
  }

  GS_FN static void fill(Real h, const Real (*jacobian)[dim], LinearSystem& factors) {
    for_each<dim>([&](auto i) GS_LAMBDA {
      for_used(i, [&](auto j) GS_LAMBDA {
        factors.lu[i][j] = of_mass(h, order.component[i], order.component[j]);
      });
    });
    for_each<dim>([&](auto r) GS_LAMBDA {
      for_columns(r, [&](auto c) GS_LAMBDA {
        Real& entry = factors.lu[order.unknown[r]][order.unknown[c]];
        entry = fma(-h, jacobian[r][c], entry);
      });
    });
  }

  // The factors of the step's linear system, and f_t. The Jacobian is computed again where it is
  // needed again, which is seldom: kept, it would take up registers in every step.
  GS_FN static void linearise(const Parameters& p, Real t0, Real t1, const Real* y,
                              LinearSystem& factors, Real* slope) {
    factors.factorise([&](auto again) GS_LAMBDA {
      Real at[dim], jacobian[dim][dim];
      for_each<dim>([&](auto c) GS_LAMBDA { at[c] = again ? hidden(y[c]) : y[c]; });
      P::jacobian(p, t0, at, jacobian[0], slope);
      fill(t1 - t0, jacobian, factors);
    });
  }

  // x becomes W^-1 x, or W^-T x.
  GS_FN static void solve(const LinearSystem& factors, Real* x) {
    in_order(x, [&](Real* z) GS_LAMBDA { factors.solve(z); });
  }
  GS_FN static void solve_transposed(const LinearSystem& factors, Real* x) {
    in_order(x, [&](Real* z) GS_LAMBDA { factors.solve_transposed(z); });
  }

  // All stages, given the value of the field at the start in k[0]; in `before` the last one's Y_i,
  // for those that go on from it.
  GS_FN static void run_stages(const Parameters& p, Real t0, Real t1, const Real* y,
                               const LinearSystem& factors, const Real* slope, Real (*k)[dim],
                               Real* before) {
    const Real h = t1 - t0;
    Real value[dim];
    for_each<dim>([&](auto c) GS_LAMBDA { value[c] = k[0][c]; });
    for_stages([&](auto i) GS_LAMBDA {
      Real at[dim], sum[dim];
      earlier_stages(i, y, h, k, before, at, sum);
      if (i > 0 && !chains.repeats[i]) P::field(p, Base::stage_time(i, t0, t1), at, value);
      Real x[dim];
      if constexpr (with_mass) {
        times_mass(sum, x);
        for_each<dim>([&](auto c) GS_LAMBDA { x[c] = value[c] + x[c]; });
      } else {
        for_each<dim>([&](auto c) GS_LAMBDA { x[c] = value[c] + sum[c]; });
      }
      if constexpr (P::with_slope) {
        const Scalar d = T::d[i];
        if (d != 0) {
          for_each<dim>([&](auto c) GS_LAMBDA { x[c] = fma(h * Real(d), slope[c], x[c]); });
        }
      }
      solve(factors, x);
      for_each<dim>([&](auto c) GS_LAMBDA {
        k[i][c] = x[c];
        if constexpr (goes_on(Index<1>{})) before[c] = at[c];
      });
    });
  }

  GS_FN static void step(const Parameters& p, Real t0, Real t1, const Real* y, Real (*k)[dim],
                         Real* y1) {
    const Real h = t1 - t0;
    LinearSystem factors;
    Real slope[dim], last[dim];
    linearise(p, t0, t1, y, factors, slope);
    run_stages(p, t0, t1, y, factors, slope, k, last);
    if constexpr (goes_on(Index<stages>{})) {
      constexpr Scalar weight = T::b[stages - 1];
      for_each<dim>([&](auto c) GS_LAMBDA {
        y1[c] = weight == 0 ? last[c] : fma(h * Real(weight), k[stages - 1][c], last[c]);
      });
    } else {
      Base::end_state(y, h, k, y1);
    }
  }

  GS_FN static void extra_stages(const Parameters&, Real, Real, const Real*, Real (*)[dim]) {}

  // ---- The adjoint -----------------------------------------------------------------------------
  //
  // Given the cotangent lambda of y1 and cotangents c_m of the outputs y(theta_m), with
  // W = M / gamma - h J, for i from s down to 1:
  //
  //   kbar_i = h (b_i lambda + sum_m b_i(theta_m) c_m + sum_{j>i} a_ji w_j)
  //            + M^T sum_{j>i} C_ji v_j,
  //   v_i = W^-T kbar_i,
  //   w_i = (df/dy)(t + c_i h, Y_i)^T v_i,
  //
  // and then ybar = lambda + sum_m c_m + sum_i w_i. The rest of ybar, and what parameters, times
  // and h receive inside the stages, are gradients of
  //
  //   v_i^T (f(t + c_i h, Y_i) + h (J k_i + d_i f_t))
  //
  // with v_i, Y_i and k_i held fixed: a stage pulls v_i back through all of this at once, so that
  // neither J nor a cotangent of it is kept. Beside that h receives
  //
  //   lambda^T sum_i b_i k_i + (outputs) + sum_i w_i^T sum_j a_ij k_j.

  // The arguments are always summed up again; adjoint.h then reads ahead into the cache, not into
  // registers.
  static constexpr bool fill_registers() { return true; }

  struct Linearised {
    LinearSystem factors;
  };

  GS_FN static void adj_forward(const Parameters& p, Real t0, Real t1, const Real* y, bool,
                                Real (*k)[dim], Linearised& step) {
    Real slope[dim], last[dim];
    first_stage(p, t0, y, k[0]);
    linearise(p, t0, t1, y, step.factors, slope);
    run_stages(p, t0, t1, y, step.factors, slope, k, last);
  }

  // ct: cotangent of y1 on entry, of y on exit. What is in k afterwards is of no use.
  GS_FN static void adj_step(const Parameters& p, Real t0, Real t1, const Real* y, Real (*k)[dim],
                             const Linearised& step, bool outputs_here,
                             const OutputCotangents* outputs, Real* ct, Real& ct_t0, Real& ct_t1,
                             Real* ct_p) {
    const Real h = t1 - t0;
    LaterStages<Rosenbrock> later;
    Real ct_h(0), ct_start(0), ct_end(0);
    if constexpr (P::with_times && P::with_outputs) {
      if (outputs_here) {
        ct_start = outputs->t0;
        ct_end = outputs->t1;
      }
    }
    // The cotangent of Y_i, as it is where it reaches stages before i.
    const auto pulled = [&](auto i, Real* w) GS_LAMBDA {
      later.add_pulled(i, h, w);
      if constexpr (P::with_times) {
        for_below(i, [&](auto j) GS_LAMBDA {
          const Scalar weight = chains.added[i][j];
          if (weight != 0) ct_h = fma(Real(weight), along(w, k[j]), ct_h);
        });
      }
    };
    {
      Real w[dim];
      for_each<dim>([&](auto c) GS_LAMBDA { w[c] = ct[c]; });
      pulled(Index<stages>{}, w);
    }
    for_stages_down([&](auto i) GS_LAMBDA {
      Real v[dim];
      later.sum(i, h, k, v);
      if constexpr (P::with_outputs) {
        if (outputs_here && Base::in_dense_output(i)) {
          for_each<dim>([&](auto c)
                            GS_LAMBDA { v[c] = fma(h, outputs->reach(i, Real(0), c), v[c]); });
        }
      }
      solve_transposed(step.factors, v);
      Real argument[dim], w[dim], ct_tau(0);
      stage_argument(i, y, hidden(h), k, argument);
      P::pull_stage(p, Base::stage_time(i, t0, t1), argument, t0, y, hidden(h), Real(T::d[i]), k[i],
                    v, w, ct, ct_tau, ct_start, ct_h, ct_p);
      if constexpr (P::with_times) {
        const Scalar c_i = T::c[i];
        ct_start = ct_start + Real(1 - c_i) * ct_tau;
        ct_end = ct_end + Real(c_i) * ct_tau;
      }
      for_each<dim>([&](auto c) GS_LAMBDA { ct[c] = ct[c] + w[c]; });
      later.add_solution(i, v, k);
      pulled(i, w);
    });
    if constexpr (P::with_outputs) {
      if (outputs_here) {
        for_each<dim>([&](auto c) GS_LAMBDA { ct[c] = ct[c] + outputs->moment(0, c); });
      }
    }
    ct_t0 = ct_start - ct_h;
    ct_t1 = ct_end + ct_h;
  }

  // ---- Also for later_stages.h -----------------------------------------------------------------

  // f(c, W) for the components c, ..., c + W - 1, for sums over stages. Those of stages in memory
  // are added up together, all of them while components are unrolled and else four at a time, so
  // that a weight that is looked up serves several, and none waits for another.
  template <class F>
  GS_FN static void for_components(F&& f) {
    if constexpr (unrolled) {
      static_for<dim>([&](auto c) GS_LAMBDA { f(c, Index<1>{}); });
    } else if constexpr (dim <= kMaxUnrolled) {
      f(Index<0>{}, Index<dim>{});
    } else {
      constexpr int left_over = dim % 4;
      for (int c = 0; c < dim - left_over; c += 4) f(c, Index<4>{});
      if constexpr (left_over > 0) f(dim - left_over, Index<left_over>{});
    }
  }

  // sum + weight x, for W components.
  template <int W>
  GS_FN static void add(Real weight, const Real* x, Real* sum) {
    static_for<W>([&](auto q) GS_LAMBDA { sum[q] = fma(weight, x[q], sum[q]); });
  }

  // f(c) for the columns of row r of the Jacobian that are not zero whatever the state.
  template <class R, class F>
  GS_FN static void for_columns(R r, F&& f) {
    if constexpr (dim <= kMaxUnrolled) {
      static_for<dim>([&](auto c) GS_LAMBDA {
        if constexpr (P::depends[R::value][decltype(c)::value]) f(c);
      });
    } else {
      for_list(jacobian_columns, r, f);
    }
  }

  // M^T x.
  GS_FN static void times_transposed_mass(const Real* x, Real* out) {
    for_each<dim>([&](auto j) GS_LAMBDA {
      out[j] = Real(0);
      for_each<dim>([&](auto i) GS_LAMBDA {
        if (mass(i, j) != 0) out[j] = fma(Real(mass(i, j)), x[i], out[j]);
      });
    });
  }

 private:
  // f(x) on the unknowns in their order.
  template <class F>
  GS_FN static void in_order(Real* x, F&& f) {
    if constexpr (order.natural) {
      f(x);
    } else {
      Real z[dim];
      for_each<dim>([&](auto i) GS_LAMBDA { z[i] = x[order.component[i]]; });
      f(z);
      for_each<dim>([&](auto i) GS_LAMBDA { x[order.component[i]] = z[i]; });
    }
  }

  // f(c) for the columns of row r of the linear system that can have an entry.
  template <class R, class F>
  GS_FN static void for_used(R r, F&& f) {
    if constexpr (dim <= kMaxUnrolled) {
      static_for<dim>(f);
    } else {
      for_list(LinearSystem::used, r, f);
    }
  }

  // Y_i and sum_{j<i} C_ij k_j: together, so that stages in memory are read once.
  template <class I>
  GS_FN static void earlier_stages(I i, const Real* y, Real h, const Real (*k)[dim],
                                   const Real* before, Real* at, Real* sum) {
    for_components([&](auto c, auto width) GS_LAMBDA {
      constexpr int W = decltype(width)::value;
      Real argument[W], other[W];
      static_for<W>([&](auto q) GS_LAMBDA {
        argument[q] = goes_on(i) ? before[c + q] : y[c + q];
        other[q] = Real(0);
      });
      for_below(i, [&](auto j) GS_LAMBDA {
        const Scalar of_argument = goes_on(i) ? chains.added[i][j] : T::a[i][j];
        const Scalar of_other = T::C[i][j];
        if (of_argument != 0) add<W>(h * Real(of_argument), k[j] + c, argument);
        if (of_other != 0) add<W>(Real(of_other), k[j] + c, other);
      });
      static_for<W>([&](auto q) GS_LAMBDA {
        at[c + q] = argument[q];
        sum[c + q] = other[q];
      });
    });
  }

  // Y_i alone.
  template <class I>
  GS_FN static void stage_argument(I i, const Real* y, Real h, const Real (*k)[dim], Real* out) {
    for_components([&](auto c, auto width) GS_LAMBDA {
      constexpr int W = decltype(width)::value;
      Real sum[W];
      static_for<W>([&](auto q) GS_LAMBDA { sum[q] = y[c + q]; });
      for_below(i, [&](auto j) GS_LAMBDA {
        const Scalar weight = T::a[i][j];
        if (weight != 0) add<W>(h * Real(weight), k[j] + c, sum);
      });
      static_for<W>([&](auto q) GS_LAMBDA { out[c + q] = sum[q]; });
    });
  }

  GS_FN static void times_mass(const Real* x, Real* out) {
    for_each<dim>([&](auto i) GS_LAMBDA {
      out[i] = Real(0);
      for_each<dim>([&](auto j) GS_LAMBDA {
        if (mass(i, j) != 0) out[i] = fma(Real(mass(i, j)), x[j], out[i]);
      });
    });
  }

  GS_FN static Real along(const Real* a, const Real* b) {
    Real out(0);
    for_each<dim>([&](auto c) GS_LAMBDA { out = fma(a[c], b[c], out); });
    return out;
  }
};

}  // namespace gs
