// Prints the layout of the argument structures and the status codes; the host packs and reads them.

#include "gs/arguments.h"

#include <cstddef>
#include <cstdio>

namespace {

template <int NumLeaves, int NumWanted>
void print_sizes() {
  std::printf("record %d %zu\n", NumLeaves, sizeof(gs::RecordArguments<NumLeaves>));
  std::printf("replay %d %zu\n", NumLeaves, sizeof(gs::ReplayArguments<NumLeaves>));
  std::printf("adjoint %d %d %zu\n", NumLeaves, NumWanted,
              sizeof(gs::AdjointArguments<NumLeaves, NumWanted>));
}

}  // namespace

int main() {
  print_sizes<0, 0>();
  print_sizes<1, 0>();
  print_sizes<3, 2>();
  // One member from each stretch of a structure, by its word.
  using Record = gs::RecordArguments<1>;
  using Replay = gs::ReplayArguments<1>;
  using Adjoint = gs::AdjointArguments<1, 1>;
#define PRINT_WORD(structure, member) \
  std::printf("word " #structure "." #member " %zu\n", offsetof(structure, member) / 8)
  PRINT_WORD(Record, y0);
  PRINT_WORD(Record, y1);
  PRINT_WORD(Record, status);
  PRINT_WORD(Record, leaves);
  PRINT_WORD(Replay, y0);
  PRINT_WORD(Replay, status);
  PRINT_WORD(Replay, leaves);
  PRINT_WORD(Adjoint, t0);
  PRINT_WORD(Adjoint, ct_y0);
  PRINT_WORD(Adjoint, partial);
  PRINT_WORD(Adjoint, leaves);
  PRINT_WORD(Adjoint, ct_leaves);
  std::printf("status successful %d\n", gs::kSuccessful);
  std::printf("status max_steps_reached %d\n", gs::kMaxStepsReached);
  std::printf("status step_size_underflow %d\n", gs::kStepSizeUnderflow);
  std::printf("status nonfinite %d\n", gs::kNonfinite);
  std::printf("status event %d\n", gs::kEvent);
  return 0;
}
