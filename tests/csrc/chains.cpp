// Which arguments of stages go on from each other, and what that makes of the weights.

#include "gs/chains.h"

#include "check.h"

using namespace gs;

namespace {

// Stiffly accurate, as Rodas4 is: the last two rows and b differ by their last entries only.
struct Accurate {
  static constexpr int stages = 4;
  static constexpr Scalar c[4] = {0, 0.5, 1, 1};
  static constexpr Scalar a[4][4] = {{}, {2}, {3, 5}, {3, 5, 1}};
  static constexpr Scalar b[4] = {3, 5, 1, 1};
};

// The third stage evaluates the field where the second does, as in GRK4T; nothing comes before b.
struct Repeating {
  static constexpr int stages = 3;
  static constexpr Scalar c[3] = {0, 1, 1};
  static constexpr Scalar a[3][3] = {{}, {2}, {2, 0}};
  static constexpr Scalar b[3] = {7, 1, 1};
};

// Adds up what stages get from the arguments of later ones: by rows, and by chains as in the
// adjoint.
template <class T>
void check_told(const Chains<T>& chains) {
  Scalar pulled[Chains<T>::rows], sums[Chains<T>::rows] = {};
  for (int j = T::stages; j >= 0; --j) {
    if (j < T::stages) {
      Scalar by_rows = 0, by_chains = 0;
      for (int i = j + 1; i < Chains<T>::rows; ++i) by_rows += Chains<T>::weight(i, j) * pulled[i];
      for (int m = chains.chain[j + 1]; m < chains.count; ++m) {
        by_chains += chains.told[m][j] * sums[m];
      }
      CHECK(by_rows == by_chains);
    }
    pulled[j] = Scalar(1 << j);
    sums[chains.chain[j]] += pulled[j];
  }
}

}  // namespace

int main() {
  constexpr Chains<Accurate> accurate;
  static_assert(accurate.count == 2 && accurate.chain[1] == 0 && accurate.chain[2] == 1);
  static_assert(!accurate.goes_on[2] && accurate.goes_on[3] && accurate.goes_on[4]);
  static_assert(accurate.added[2][0] == 3 && accurate.added[2][1] == 5);
  static_assert(accurate.added[4][2] == 0 && accurate.added[4][3] == 1);
  static_assert(!accurate.repeats[2] && !accurate.repeats[3]);
  check_told(accurate);

  constexpr Chains<Repeating> repeating;
  static_assert(repeating.goes_on[2] && repeating.repeats[2] && !repeating.repeats[1]);
  static_assert(!repeating.goes_on[3] && repeating.count == 2);
  check_told(repeating);
  return failures != 0;
}
