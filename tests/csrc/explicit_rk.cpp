// One step: its order, its dense output, and that the adjoint is the transpose.

#include "check.h"
#include "problems.h"

namespace {

double rounding(double scale) { return 64 * (GS_REAL_BITS == 64 ? 2.3e-16 : 1.2e-7) * scale; }

// Different numbers in every lane, the same in every build.
Real spread(double base, double step) {
  Real out;
  for (int l = 0; l < GS_LANES; ++l) set_lane(out, l, Scalar(base + step * l));
  return out;
}

// ---- Order -------------------------------------------------------------------------------------

// The errors of the end state and of an output after one step of length h of lane l.
template <class Tableau>
void errors_of_step(double h, int l, double* end, double* inside) {
  using P = Problem<Linear, Tableau, kOutputs>;
  using Method = typename P::Method;
  typename P::Parameters q;
  q.p[0] = spread(0.6, 0.05);
  q.p[1] = spread(1.1, 0.07);
  const double t0 = 0.5, theta = 0.4;
  double start[2] = {1.2, 0.7}, want[2];
  // The closed form starts at time 0.
  double y_l[2];
  Linear::exact(lane(q.p[0], l), lane(q.p[1], l), t0, start, y_l);
  Real y[2], y1[2], out[2], k[Method::all_stages][2];
  for (int c = 0; c < 2; ++c) y[c] = Real(Scalar(y_l[c]));
  const Real from(t0), to(Scalar(t0 + h)), t(Scalar(t0 + theta * h));
  Method::first_stage(q, from, y, k[0]);
  Method::step(q, from, to, y, k, y1);
  Method::extra_stages(q, from, to, y, k);
  Method::interpolate(from, to, y, k, t, out);
  *end = *inside = 0;
  for (int c = 0; c < 2; ++c) {
    Linear::exact(lane(q.p[0], l), lane(q.p[1], l), t0 + h, start, want);
    *end = std::fmax(*end, std::fabs(lane(y1[c], l) - want[c]));
    Linear::exact(lane(q.p[0], l), lane(q.p[1], l), t0 + theta * h, start, want);
    *inside = std::fmax(*inside, std::fabs(lane(out[c], l) - want[c]));
  }
}

template <class Tableau>
void check_order(int dense_order) {
  for (int l = 0; l < GS_LANES; ++l) {
    double end, inside, end_half, inside_half;
    errors_of_step<Tableau>(0.05, l, &end, &inside);
    errors_of_step<Tableau>(0.025, l, &end_half, &inside_half);
    // The next term of the expansion is h times as large: a tenth of an order is room enough.
    CHECK(std::fabs(std::log2(end / end_half) - (Tableau::order + 1)) < 0.2);
    CHECK(std::fabs(std::log2(inside / inside_half) - (dense_order + 1)) < 0.2);
  }
}

// The difference to the embedded method, against its own formula.
template <class Tableau>
void check_error() {
  using P = Problem<Lorenz, Tableau, 0>;
  using Method = typename P::Method;
  Real k[Method::all_stages][3], out[3];
  for (int i = 0; i < Method::all_stages; ++i) {
    for (int c = 0; c < 3; ++c) k[i][c] = spread(std::cos(3.0 * i + c), 0.1 * c + 0.01);
  }
  Method::error(spread(0.1, 0.01), k, out);
  for (int l = 0; l < GS_LANES; ++l) {
    for (int c = 0; c < 3; ++c) {
      double want = 0;
      for (int i = 0; i < Tableau::stages; ++i) want += Tableau::b_error[i] * lane(k[i][c], l);
      want *= lane(spread(0.1, 0.01), l);
      CHECK(std::fabs(lane(out[c], l) - want) < rounding(1));
    }
  }
}

// ---- The adjoint -------------------------------------------------------------------------------

// Everything that a step with one output inside depends on.
template <class Field>
struct Inputs {
  typename Field::Parameters q;
  Real y[Field::dim], t0, t1, t;
};

// b_i(theta) and its derivative, written differently from the header.
template <class Tableau>
void polynomial(int i, Real theta, Real* weight, Real* slope) {
  *weight = *slope = Real(0);
  Real power(1);
  for (int p = 0; p < Tableau::degree; ++p) {
    *slope = *slope + Real(Scalar(p + 1) * Tableau::dense[i][p]) * power;
    power = power * theta;
    *weight = *weight + Real(Tableau::dense[i][p]) * power;
  }
}

// The derivatives of the end state and of the output along `d`, by the rules of calculus.
template <class Field, class Tableau>
void tangent(const Inputs<Field>& x, const Inputs<Field>& d, bool at_end, Real* d_end,
             Real* d_out) {
  constexpr int dim = Field::dim, all = Tableau::stages + Tableau::extra;
  const Real h = x.t1 - x.t0, dh = d.t1 - d.t0;
  Real k[all][dim], dk[all][dim];
  for (int i = 0; i < all; ++i) {
    const Real c(Tableau::c[i]), tau = x.t0 + c * h, dtau = d.t0 + c * dh;
    Real at[dim], d_at[dim];
    for (int m = 0; m < dim; ++m) {
      at[m] = x.y[m];
      d_at[m] = d.y[m];
      for (int j = 0; j < i; ++j) {
        const Real a(Tableau::a[i][j]);
        at[m] = at[m] + h * a * k[j][m];
        d_at[m] = d_at[m] + dh * a * k[j][m] + h * a * dk[j][m];
      }
    }
    Field::field(x.q, tau, at, k[i]);
    Field::push(x.q, tau, at, d.q, dtau, d_at, dk[i]);
  }
  // An output at the end of the step is the end state, moved along the dense output.
  const Real theta = at_end ? Real(1) : (x.t - x.t0) / h;
  const Real d_theta = (d.t - d.t0 - theta * dh) / h;
  for (int m = 0; m < dim; ++m) {
    d_end[m] = d_out[m] = d.y[m];
    for (int i = 0; i < Tableau::stages; ++i) {
      d_end[m] = d_end[m] + Real(Tableau::b[i]) * (dh * k[i][m] + h * dk[i][m]);
    }
    Real moved(0);
    for (int i = 0; i < all; ++i) {
      Real weight, slope;
      polynomial<Tableau>(i, theta, &weight, &slope);
      d_out[m] = d_out[m] + weight * (dh * k[i][m] + h * dk[i][m]);
      moved = moved + h * slope * d_theta * k[i][m];
    }
    d_out[m] = (at_end ? d_end[m] : d_out[m]) + moved;
  }
}

// <u, J v> == <J^T u, v>, with and without the output.
template <class Field, class Tableau, int asked>
void check_transpose(bool outputs_here, bool at_end) {
  using P = Problem<Field, Tableau, asked>;
  using Method = typename P::Method;
  constexpr int dim = Field::dim, num = Field::num_leaves;
  Inputs<Field> x, d;
  for (int m = 0; m < dim; ++m) {
    x.y[m] = spread(1.3 - 0.4 * m, 0.03);
    d.y[m] = spread(0.3 + 0.5 * m, -0.02);
  }
  for (int i = 0; i < num; ++i) {
    x.q.p[i] = spread(1.1 + 0.7 * i, 0.05);
    d.q.p[i] = spread(0.9 - 0.6 * i, 0.04);
  }
  x.t0 = spread(0.25, 0.1);
  x.t1 = x.t0 + spread(0.125, 0.01);
  x.t = at_end ? x.t1 : x.t0 + spread(0.05, 0.005);
  d.t0 = P::with_times ? spread(0.7, 0.01) : Real(0);
  d.t1 = P::with_times ? spread(-0.4, 0.02) : Real(0);
  d.t = P::with_times ? spread(1.2, 0.03) : Real(0);

  Real u_end[dim], u_out[dim], d_end[dim], d_out[dim];
  for (int m = 0; m < dim; ++m) {
    u_end[m] = spread(0.8 - 0.9 * m, 0.06);
    u_out[m] = outputs_here ? spread(-0.5 + 0.3 * m, 0.05) : Real(0);
  }
  tangent<Field, Tableau>(x, d, at_end, d_end, d_out);

  Real k[Method::all_stages][dim] = {};
  typename Method::Linearised step = {};
  Real ct[dim], ct_p[num], ct_t0, ct_t1, ct_t(0);
  Method::adj_forward(x.q, x.t0, x.t1, x.y, outputs_here, k, step);
  typename Method::OutputCotangents outputs;
  outputs.clear();
  for (int m = 0; m < dim; ++m) ct[m] = u_end[m];
  for (int i = 0; i < num; ++i) ct_p[i] = Real(0);
  if (outputs_here) {
    if (at_end) {
      for (int m = 0; m < dim; ++m) ct[m] = ct[m] + u_out[m];
    }
    ct_t = Method::adj_output(x.t0, x.t1, k, x.t, u_out, Mask(at_end), outputs);
  }
  Method::adj_step(x.q, x.t0, x.t1, x.y, k, step, outputs_here, &outputs, ct, ct_t0, ct_t1, ct_p);

  Real left(0), right(0);
  for (int m = 0; m < dim; ++m) {
    left = left + u_end[m] * d_end[m] + u_out[m] * d_out[m];
    right = right + ct[m] * d.y[m];
  }
  for (int i = 0; i < num; ++i) right = right + ct_p[i] * d.q.p[i];
  if (P::with_times) right = right + ct_t0 * d.t0 + ct_t1 * d.t1 + ct_t * d.t;
  for (int l = 0; l < GS_LANES; ++l) {
    // The terms are of the size of 10 at most.
    CHECK(std::fabs(lane(left - right, l)) < rounding(10));
    CHECK(std::fabs(lane(left, l)) > 1e-3);  // not all zero
  }
}

// ---- Steps of length zero ----------------------------------------------------------------------

// They pad the meshes of short trajectories: the identity, in values and derivatives.
template <class Tableau>
void check_empty_step() {
  using P = Problem<Lorenz, Tableau, kOutputs>;
  using Method = typename P::Method;
  Lorenz::Parameters q;
  for (int i = 0; i < 3; ++i) q.p[i] = spread(2.5 + i, 0.5);
  Real y[3], y1[3], out[3], ct[3], ct_p[3], ct_t0, ct_t1;
  Real k[Method::all_stages][3];
  typename Method::Linearised step;
  for (int c = 0; c < 3; ++c) {
    y[c] = spread(1.0 + c, 0.25);
    ct[c] = spread(0.5 - c, 0.25);
    ct_p[c] = Real(0);
  }
  const Real t = spread(3.0, 0.5);
  Method::first_stage(q, t, y, k[0]);
  Method::step(q, t, t, y, k, y1);
  Method::extra_stages(q, t, t, y, k);
  Method::interpolate(t, t, y, k, t, out);
  typename Method::OutputCotangents outputs;
  outputs.clear();
  Method::adj_forward(q, t, t, y, true, k, step);
  Method::adj_step(q, t, t, y, k, step, true, &outputs, ct, ct_t0, ct_t1, ct_p);
  for (int l = 0; l < GS_LANES; ++l) {
    for (int c = 0; c < 3; ++c) {
      CHECK(same(lane(y1[c], l), lane(y[c], l)));
      CHECK(same(lane(out[c], l), lane(y[c], l)));
      CHECK(same(lane(ct[c], l), lane(spread(0.5 - c, 0.25), l)));
      CHECK(lane(ct_p[c], l) == 0);
    }
  }
}

}  // namespace

int main() {
#if GS_REAL_BITS == 64  // in single precision the error of a short step is rounding
  check_order<Heun>(2);
  check_order<Bosh3>(3);
  check_order<RK4>(1);
#endif
  check_error<Heun>();
  check_error<Bosh3>();
  // Each method, and everything that can be asked for; for the compiler's sake not all of all.
  check_transpose<Lorenz, Bosh3, kEnd>(false, false);
  check_transpose<Linear, RK4, kEnd | kTimes>(false, false);
  check_transpose<Linear, Heun, kOutputs>(false, false);
  check_transpose<Linear, Heun, kOutputs>(true, false);
  check_transpose<Lorenz, Heun, kOutputs | kOutputTimes>(false, false);
  check_transpose<Lorenz, Heun, kOutputs | kOutputTimes>(true, false);
  check_transpose<Lorenz, Heun, kOutputs | kOutputTimes>(true, true);
  check_transpose<Linear, Bosh3, kOutputs | kOutputTimes>(true, false);
  check_transpose<Linear, Bosh3, kOutputs | kOutputTimes>(true, true);
  check_empty_step<Heun>();
  check_empty_step<Bosh3>();
  std::printf("%d lanes of %d bits\n", GS_LANES, GS_REAL_BITS);
  return failures != 0;
}
