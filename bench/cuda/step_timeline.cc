#include "bench/cuda/step_timeline.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

#if __has_include(<cupti.h>)
#include <cupti.h>
#define RECURVE_HAVE_CUPTI 1
#endif

namespace recurve {

#ifdef RECURVE_HAVE_CUPTI

namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

// CUPTI's callbacks carry no context of ours.
std::mutex g_mu;
std::vector<StepTimeline::Span>* g_spans = nullptr;
CUptiResult (*g_next)(uint8_t*, size_t, CUpti_Activity**) = nullptr;
CUptiResult (*g_dropped)(CUcontext, uint32_t, size_t*) = nullptr;
// Records without room, since the last Take.
size_t g_lost = 0;

// "void recurve::(anonymous namespace)::f<...>(...)" is f.
std::string ShortName(const char* mangled) {
  int failed = 0;
  char* const text = abi::__cxa_demangle(mangled, nullptr, nullptr, &failed);
  std::string name = failed == 0 ? text : mangled;
  std::free(text);
  const std::string anonymous = "(anonymous namespace)";
  for (size_t at; (at = name.find(anonymous)) != std::string::npos;)
    name.replace(at, anonymous.size(), "anonymous");
  name = name.substr(0, name.find_first_of("<("));
  const size_t from = name.find_last_of(": ");
  return from == std::string::npos ? name : name.substr(from + 1);
}

void CUPTIAPI NewBuffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI ReadBuffer(CUcontext context, uint32_t stream, uint8_t* buffer,
                         size_t, size_t valid) {
  const std::lock_guard lock(g_mu);
  size_t lost = 0;  // since the last call
  if (g_dropped(context, stream, &lost) == CUPTI_SUCCESS) g_lost += lost;
  CUpti_Activity* record = nullptr;
  while (g_spans != nullptr &&
         g_next(buffer, valid, &record) == CUPTI_SUCCESS) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_KERNEL:
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        // Later versions only add fields at the end.
        const auto* k = reinterpret_cast<const CUpti_ActivityKernel8*>(record);
        g_spans->push_back({ShortName(k->name), static_cast<int64_t>(k->start),
                            static_cast<int64_t>(k->end),
                            int64_t{k->gridX} * k->gridY * k->gridZ,
                            int64_t{k->blockX} * k->blockY * k->blockZ});
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
        g_spans->push_back({"copy", static_cast<int64_t>(m->start),
                            static_cast<int64_t>(m->end), 0, 0});
        break;
      }
      default:
        break;
    }
  }
  std::free(buffer);
}

}  // namespace

struct StepTimeline::Api {
  void* library = nullptr;
  CUptiResult (*enable)(CUpti_ActivityKind) = nullptr;
  CUptiResult (*flush)(uint32_t) = nullptr;
  std::vector<Span> spans;
};

absl::StatusOr<std::unique_ptr<StepTimeline>> StepTimeline::Create() {
  auto api = std::make_unique<Api>();
  const std::string name = absl::StrCat("libcupti.so.", CUDART_VERSION / 1000);
  for (const std::string& folder :
       {std::string(), std::string("/usr/local/cuda/lib64/"),
        std::string("/usr/local/cuda/extras/CUPTI/lib64/")}) {
    api->library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (api->library != nullptr) break;
  }
  if (api->library == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "a timeline needs ", name, " of the CUDA toolkit: ", dlerror()));
  }
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  const auto find = [&](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(
        dlsym(api->library, symbol));
    return *function != nullptr;
  };
  if (!find("cuptiActivityEnable", &api->enable) ||
      !find("cuptiActivityFlushAll", &api->flush) ||
      !find("cuptiActivityGetNextRecord", &g_next) ||
      !find("cuptiActivityGetNumDroppedRecords", &g_dropped) ||
      !find("cuptiActivityRegisterCallbacks", &register_callbacks)) {
    return absl::UnavailableError(
        absl::StrCat(name, " lacks what a timeline needs"));
  }
  g_spans = &api->spans;
  auto timeline =
      std::unique_ptr<StepTimeline>(new StepTimeline(std::move(api)));
  for (const CUptiResult result :
       {register_callbacks(&NewBuffer, &ReadBuffer),
        timeline->api_->enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL),
        timeline->api_->enable(CUPTI_ACTIVITY_KIND_MEMCPY)}) {
    if (result != CUPTI_SUCCESS) {
      return absl::UnavailableError(
          absl::StrCat("CUPTI cannot trace: error ", static_cast<int>(result)));
    }
  }
  return timeline;
}

absl::StatusOr<std::vector<StepTimeline::Span>> StepTimeline::Take() {
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    return absl::InternalError(cudaGetErrorString(error));
  }
  if (const CUptiResult result = api_->flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
      result != CUPTI_SUCCESS) {
    return absl::InternalError(
        absl::StrCat("CUPTI: error ", static_cast<int>(result)));
  }
  const std::lock_guard lock(g_mu);
  std::vector<Span> spans;
  spans.swap(api_->spans);
  if (const size_t lost = std::exchange(g_lost, 0); lost > 0) {
    return absl::DataLossError(absl::StrCat(
        "CUPTI had no room for ", lost, " records: the timeline has holes"));
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return a.begin_ns < b.begin_ns;
  });
  const int64_t first = spans.empty() ? 0 : spans.front().begin_ns;
  for (Span& span : spans) {
    span.begin_ns -= first;
    span.end_ns -= first;
  }
  return spans;
}

StepTimeline::~StepTimeline() {
  const std::lock_guard lock(g_mu);
  g_spans = nullptr;
}

#else

struct StepTimeline::Api {};

absl::StatusOr<std::unique_ptr<StepTimeline>> StepTimeline::Create() {
  return absl::UnavailableError(
      "a timeline needs CUPTI, whose headers were not there when this was "
      "built");
}
absl::StatusOr<std::vector<StepTimeline::Span>> StepTimeline::Take() {
  return absl::UnavailableError("no CUPTI");
}
StepTimeline::~StepTimeline() = default;

#endif

StepTimeline::StepTimeline(std::unique_ptr<Api> api) : api_(std::move(api)) {}

}  // namespace recurve
