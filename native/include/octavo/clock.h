// The runtime's clock. Not for files that are compiled for an instruction set: this is inline.
#pragma once
#include <chrono>

namespace octavo {

// Never goes back; on Linux it is Python's time.monotonic().
inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace octavo
