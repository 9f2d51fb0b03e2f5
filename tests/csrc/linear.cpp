// Linear systems in registers against their own products, with pivots that have to be exchanged.

#include "gs/linear.h"

#include "check.h"

using namespace gs;

namespace {

// Different in every lane, and mixed well: entries that are linear in their number make singular
// matrices. (The mixing is that of splitmix64.)
Scalar entry(int seed, int l) {
  uint64_t z = static_cast<uint64_t>(seed * 64 + l + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<Scalar>(static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53 - 0.5);
}

// A chain of reactions that is fed back from its end.
struct Chain {
  static constexpr bool entry(int i, int j) { return i - j == 1 || j - i == 1 || (i < 2 && j > 3); }
};

// Exchanged rows must not reach beyond what the structure has foreseen.
struct Arrow {
  static constexpr bool entry(int i, int j) { return i == 0 || j == 0; }
};

template <int N, class Pattern>
void factorise(const Real (*a)[N], Factors<N, Pattern>& factors) {
  factors.factorise([&](auto) {
    for (int i = 0; i < N; ++i) {
      for (int j = 0; j < N; ++j) {
        // What is not used is not read either.
        const bool used = N <= kMaxUnrolled || Structure<N, Pattern>().used[i][j];
        factors.lu[i][j] = used ? a[i][j] : Real(kNan);
      }
    }
  });
}

// |A x - b| is the rounding of N products of the size of x, times the growth of the elimination,
// which is below N for these matrices.
template <int N, class Pattern = Full>
void check_random(int seed, bool zero_diagonal) {
  const double unit = GS_REAL_BITS == 64 ? 0x1p-52 : 0x1p-23;
  Factors<N, Pattern> factors;
  Real a[N][N], b[N], x[N], z[N];
  for (int i = 0; i < N; ++i) {
    for (int l = 0; l < GS_LANES; ++l) set_lane(b[i], l, entry(seed + 1000 + i, l));
    for (int j = 0; j < N; ++j) {
      for (int l = 0; l < GS_LANES; ++l) {
        const bool absent = i != j && !Pattern::entry(i, j);
        const bool zero = absent || (zero_diagonal && i == j && N > 1);
        set_lane(a[i][j], l, zero ? Scalar(0) : entry(seed + N * i + j, l));
      }
    }
    x[i] = z[i] = b[i];
  }
  factorise(a, factors);
  factors.solve(x);
  factors.solve_transposed(z);
  for (int l = 0; l < GS_LANES; ++l) {
    double largest = 1, of_transposed = 1;
    for (int i = 0; i < N; ++i) {
      largest = std::fmax(largest, std::fabs(lane(x[i], l)));
      of_transposed = std::fmax(of_transposed, std::fabs(lane(z[i], l)));
    }
    for (int i = 0; i < N; ++i) {
      double left = -lane(b[i], l), transposed = left;
      for (int j = 0; j < N; ++j) {
        left += static_cast<double>(lane(a[i][j], l)) * lane(x[j], l);
        transposed += static_cast<double>(lane(a[j][i], l)) * lane(z[j], l);
      }
      CHECK(std::fabs(left) < N * N * unit * largest);
      CHECK(std::fabs(transposed) < N * N * unit * of_transposed);
    }
  }
}

// A trajectory that exchanges rows changes no bit of those in lockstep with it, which do not.
template <int N, class Pattern>
void check_neighbours(int seed) {
  Real a[N][N], b[N];
  for (int i = 0; i < N; ++i) {
    for (int l = 0; l < GS_LANES; ++l) set_lane(b[i], l, entry(seed + 1000 + i, l));
    for (int j = 0; j < N; ++j) {
      const bool present = i == j || Pattern::entry(i, j);
      for (int l = 0; l < GS_LANES; ++l) {
        const Scalar off_diagonal = present ? entry(seed + N * i + j, l) : Scalar(0);
        set_lane(a[i][j], l, i == j ? Scalar(N) : off_diagonal);
      }
    }
  }
  Factors<N, Pattern> alone, beside;
  factorise(a, alone);
  set_lane(a[0][0], 0, Scalar(0));
  factorise(a, beside);
  CHECK(alone.exchanges != beside.exchanges);
  Real x[N], z[N], of_x[N], of_z[N];
  for (int i = 0; i < N; ++i) x[i] = z[i] = of_x[i] = of_z[i] = b[i];
  alone.solve(x), alone.solve_transposed(z);
  beside.solve(of_x), beside.solve_transposed(of_z);
  CHECK(!same(lane(x[0], 0), lane(of_x[0], 0)));
  for (int i = 0; i < N; ++i) {
    for (int l = 1; l < GS_LANES; ++l) {
      CHECK(same(lane(x[i], l), lane(of_x[i], l)) && same(lane(z[i], l), lane(of_z[i], l)));
    }
  }
}

// Nothing of a singular system is finite and taken for a solution.
void check_singular() {
  Factors<2> factors;
  const Real a[2][2] = {{Real(1), Real(2)}, {Real(2), Real(4)}};
  factorise(a, factors);
  Real x[2] = {Real(1), Real(1)};
  factors.solve(x);
  CHECK(!any(is_finite(x[0]) & is_finite(x[1])));
}

// A pattern costs what it holds: an arrow that points to the last row does not fill in.
struct BackwardArrow {
  static constexpr bool entry(int i, int j) { return i == 9 || j == 9; }
};
template <int N, class Pattern>
constexpr int operations() {  // of one decomposition
  const Structure<N, Pattern> structure;
  int out = 0;
  for (int k = 0; k < N; ++k) {
    int rows = 0, columns = 0;
    for (int i = k + 1; i < N; ++i) rows += structure.candidate[k][i];
    for (int j = k + 1; j < N; ++j) columns += structure.upper[k][j];
    out += rows * (columns + 1);
  }
  return out;
}
static_assert(operations<10, BackwardArrow>() < 70);
static_assert(operations<10, Full>() == 330);
static_assert(Structure<3, Arrow>().upper[0][2] && Structure<3, Arrow>().upper[1][2]);

constexpr int kOrder[3] = {2, 0, 1};
static_assert(Order<3>(kOrder).component[0] == 2 && Order<3>(kOrder).unknown[2] == 0);
static_assert(!Order<3>(kOrder).natural);

}  // namespace

int main() {
  for (int seed = 0; seed < 200; ++seed) {
    check_random<1>(7 * seed, false);
    check_random<2>(7 * seed, seed % 2 == 0);
    check_random<3>(7 * seed, seed % 2 == 0);
    check_random<5>(7 * seed, seed % 2 == 0);
    check_random<20>(7 * seed, false);  // in loops
    check_random<6, Chain>(7 * seed, seed % 2 == 0);
    check_random<20, Chain>(7 * seed, seed % 2 == 0);  // in loops
    check_random<5, Arrow>(7 * seed, false);
    check_random<18, Arrow>(7 * seed, false);  // full after the first column, in loops
    check_neighbours<3, Full>(7 * seed);
    check_neighbours<6, Chain>(7 * seed);
  }
  check_singular();
  return failures != 0;
}
