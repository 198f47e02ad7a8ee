// Input: a .safetensors file.

#include <cstddef>
#include <cstdint>

#include "engine/checkpoint/check_finite.h"
#include "engine/checkpoint/safetensors.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const recurve::MemoryFile file(
      absl::string_view(reinterpret_cast<const char*>(data), size));
  const auto opened = recurve::SafetensorsFile::Open(file.path());
  if (!opened.ok()) return 0;
  // Every byte that a view claims must be there.
  for (const auto& [name, view] : opened->tensors()) {
    const int64_t count = view.num_elements();
    recurve::CheckFinite(view, name, opened->path()).IgnoreError();
    if (count > 0) {
      view.Element(0);
      view.Element(count - 1);
    }
  }
  return 0;
}
