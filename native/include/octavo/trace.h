// Where the time of a step goes, stage by stage, and what each stage had to move and to multiply at the least.
#pragma once
#include <vector>

namespace octavo {

// The kinds of stages that a step is made of. `check`: look at the step, copy blocks, place its rows.
enum class Part : int { check, embed, prepare, matmul, rope_store, attend, merge, sum, head_prepare, head, sample };

inline constexpr const char* kPartNames[] = {"check", "embed", "prepare",      "matmul", "rope_store", "attend",
                                             "merge", "sum",   "head_prepare", "head",   "sample"};

// Counted from the shapes. `streamed` is what must come from memory, as no step leaves it in a cache: weights, and keys
// and values, each once. `read` and `written` also have the scratch between stages. An operation is a multiplication or
// an addition of a product: norms, rotations and softmax have none.
struct Cost {
  double streamed = 0, read = 0, written = 0, operations = 0;
};

struct Span {
  Part part;
  int op;    // the program's operation, by number; kNoOp for what belongs to none
  int rows;  // of the step that the stage computed
  double began_s, ended_s;
  Cost cost;
};

inline constexpr int kNoOp = -1;

struct Trace {
  std::vector<Span> spans;  // one after the other in time
};

}  // namespace octavo
