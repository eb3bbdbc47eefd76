#include "engine/device/cuda/cuda_loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"

namespace comoe::device {
namespace {

// The folder of this program's file, without a slash at its end; "." where the system does not say.
std::string ProgramFolder() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path));
  const std::string program = length > 0 ? std::string(path, static_cast<std::size_t>(length)) : "./comoe";
  return program.substr(0, program.rfind('/'));
}

std::string FindPlugin() {
  const std::string folder = ProgramFolder();
  for (const char* beside : {"/", "/../lib/", "/../lib/comoe/"}) {
    std::string path = absl::StrCat(folder, beside, kCudaPluginFile);
    if (::access(path.c_str(), R_OK) == 0) {
      return path;
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<const CudaPlugin*> LoadCudaPlugin(const std::string& path) {
  const std::string file = path.empty() ? FindPlugin() : path;
  if (file.empty()) {
    return absl::UnavailableError(absl::StrCat("this build has no CUDA: ", kCudaPluginFile,
                                               " is neither beside the program nor in ../lib (with nvcc on "
                                               "the PATH the target comoe_cuda makes it)"));
  }
  // RTLD_NOW: what is missing is missed here, not in the first call.
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return absl::UnavailableError(
        absl::StrCat("the CUDA plugin cannot be loaded: ",
                     absl::StrReplaceAll(why == nullptr ? file : std::string(why), {{"\n", " "}})));
  }
  const auto entry = reinterpret_cast<CudaPluginEntry>(::dlsym(library, kCudaPluginSymbol));
  if (entry == nullptr) {
    return absl::UnavailableError(absl::StrCat(file, " is no CUDA plugin: it has no ", kCudaPluginSymbol));
  }
  const CudaPlugin* const plugin = entry();
  if (plugin == nullptr || plugin->abi != kCudaPluginAbi || plugin->size != sizeof(CudaPlugin) ||
      plugin->device_size != sizeof(CudaDeviceApi)) {
    return absl::UnavailableError(
        absl::StrCat(file, " belongs to another version of this program (plugin ABI ",
                     plugin == nullptr ? 0 : plugin->abi, ", this program's is ", kCudaPluginAbi, ")"));
  }
  return plugin;
}

absl::Status FindCudaDevice(const std::string& path, int ordinal) {
  COMOE_ASSIGN_OR_RETURN(const CudaPlugin* const plugin, LoadCudaPlugin(path));
  return CheckCudaDevice(*plugin, ordinal).status();
}

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& path, const CudaOptions& options) {
  COMOE_ASSIGN_OR_RETURN(const CudaPlugin* const plugin, LoadCudaPlugin(path));
  return MakeCudaDevice(*plugin, options);
}

}  // namespace comoe::device
