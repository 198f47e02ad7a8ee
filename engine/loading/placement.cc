#include "engine/loading/placement.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/checkpoint/check_finite.h"
#include "engine/models/emit.h"
#ifdef RECURVE_HAVE_CUDA
#include "engine/cuda/cuda_device.h"
#endif

namespace recurve {
namespace {

absl::Status CheckChoice(absl::string_view option, absl::string_view value,
                         const std::vector<std::string>& choices,
                         absl::string_view context) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", option, " is ", value, "; ", context,
                   " supports: ", absl::StrJoin(choices, ", ")));
}

// Chooses the device. A missing GPU is an error only if one is requested.
absl::Status ChooseDevice(const std::string& device, Placement* placement) {
#ifdef RECURVE_HAVE_CUDA
  RECURVE_RETURN_IF_ERROR(CheckChoice("device", device, {"auto", "cpu", "cuda"},
                                      "this version of the server"));
  if (device == "cpu") {
    placement->description = "cpu, by --device cpu";
    return absl::OkStatus();
  }
  const absl::StatusOr<CudaDevice> found = FindCudaDevice();
  if (!found.ok()) {
    if (device == "cuda") {
      return absl::FailedPreconditionError(
          absl::StrCat("--device is cuda; ", found.status().message()));
    }
    placement->description =
        absl::StrCat("cpu, by --device auto: ", found.status().message());
    return absl::OkStatus();
  }
  placement->device.gpu = true;
  placement->free_bytes = found->free_bytes;
  placement->integrated = found->integrated;
  placement->device.hopper = found->hopper;
  placement->device.multiprocessors = found->multiprocessors;
  placement->device.compute_capability = found->compute_capability;
  placement->description = absl::StrCat(
      "cuda, by --device ", device, ": ", found->name, ", ", found->free_bytes,
      " of ", found->total_bytes, " bytes free");
#else
  RECURVE_RETURN_IF_ERROR(CheckChoice("device", device, {"auto", "cpu"},
                                      "this build, which is without CUDA,"));
  placement->description =
      absl::StrCat("cpu, by --device ", device, ": this build is without CUDA");
#endif
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Placement> Place(const ModelOptions& options) {
  Placement placement;
  RECURVE_RETURN_IF_ERROR(ChooseDevice(options.device, &placement));
  const std::string where =
      placement.device.gpu
          ? "the GPU"
          : absl::StrCat("the CPU (", placement.description, ")");
  const std::vector<std::string> dtypes =
      placement.device.gpu
          ? std::vector<std::string>{"auto", "float32", "bfloat16", "float16"}
          : std::vector<std::string>{"auto", "float32", "bfloat16"};
  const std::vector<std::string> kv_dtypes =
      placement.device.gpu
          ? std::vector<std::string>{"auto", "bfloat16", "float16", "float32"}
          : std::vector<std::string>{"auto", "float32"};
  RECURVE_RETURN_IF_ERROR(CheckChoice("dtype", options.dtype, dtypes, where));
  RECURVE_RETURN_IF_ERROR(CheckChoice("state-dtype", options.state_dtype,
                                      {"auto", "float32"}, where));
  RECURVE_RETURN_IF_ERROR(
      CheckChoice("kv-dtype", options.kv_dtype, kv_dtypes, where));
  if (!options.exact) {
    return absl::InvalidArgumentError(
        "--exact is off; only on is supported: every kernel has one order of "
        "sums for any batch, which costs little (docs/exactness.md)");
  }
  if (options.dtype != "auto") {
    RECURVE_ASSIGN_OR_RETURN(placement.device.weights,
                             ParseDType(options.dtype));
  }
  return placement;
}

absl::Status PlaceModel(const ModelDefinition& model,
                        const ModelOptions& options, Placement* placement) {
  if (!placement->device.gpu) return absl::OkStatus();
  RECURVE_RETURN_IF_ERROR(CheckGpu(model));
  if (options.kv_dtype != "auto") {
    RECURVE_ASSIGN_OR_RETURN(placement->device.pages,
                             ParseDType(options.kv_dtype));
  } else {
    placement->device.pages = GpuPagesFor(model, placement->device.weights);
  }
  if (placement->device.pages == DType::kFloat32 && !TakesFloatPages(model)) {
    return absl::InvalidArgumentError(
        "--kv-dtype is float32; the GPU keeps factors of tensor product "
        "attention in bfloat16 or float16 (--device cpu in float32)");
  }
  return absl::OkStatus();
}

absl::Status CheckWeightRange(const Checkpoint& checkpoint,
                              const ModelDefinition& model,
                              const Placement& placement) {
  if (!placement.device.weights || *placement.device.weights == DType::kFloat32)
    return absl::OkStatus();
  for (const std::string& name : model.matrices) {
    RECURVE_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint.Tensor(name));
    if (tensor.dtype == *placement.device.weights) continue;
    const absl::Status status = CheckFiniteAs(*placement.device.weights, tensor,
                                              name, checkpoint.FileOf(name));
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--dtype is ", Name(*placement.device.weights), ": ",
                       status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace recurve
