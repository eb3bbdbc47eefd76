// Probes of the accelerator and of the link to it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/doctor_probes.h"
#include "cli/lane_bench.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/device/hardware/pci.h"

namespace comoe::cli {
namespace {

constexpr double kGoodShare = 0.7;     // of the link's nominal rate: sound ones reach 0.75 to 0.85
constexpr double kGoodBlob = 0.5;      // of the rate of large copies
constexpr int kCopies = 8;             // by default 16 MiB each: longer than a link needs to clock up
constexpr double kSlowClockGts = 0.9;  // share of its full speed below which a link is clocked down

const device::PciAccelerator* FindNvidia(const std::vector<device::PciAccelerator>& cards) {
  const auto found = std::find_if(cards.begin(), cards.end(), [](const device::PciAccelerator& card) {
    return card.vendor == device::kNvidia;
  });
  return found == cards.end() ? nullptr : &*found;
}

// What an emulated link is named after: "pcie4x16" is 16 GT/s on 16 lanes. 0 for a name that is none.
double NominalOfPreset(const std::string& name) {
  int generation = 0;
  int width = 0;
  if (std::sscanf(name.c_str(), "pcie%1dx%2d", &generation, &width) != 2 || generation < 1) {
    return 0.0;
  }
  constexpr double kFirstGts = 2.5;
  const double gts = generation <= 2 ? kFirstGts * generation : std::ldexp(1.0, generation);
  return device::LinkBytesPerSecond(gts, width);
}

std::string Rate(double bytes_per_second) { return absl::StrFormat("%.1f GB/s", bytes_per_second * 1e-9); }

// Lanes and speed along the path, as they are while bytes move (where `busy`).
void JudgePath(const device::PciAccelerator& card, bool busy, DoctorContext& context) {
  const device::PciLink link = device::Narrowest(card);
  if (link.width == 0) {
    context.Add("link.width", Severity::kNote,
                absl::StrCat(card.name, " at ", card.address, ": not readable"), "",
                "a virtual machine hides it: read it on the host");
    return;
  }
  const std::string where =
      link.narrowest == card.address ? "the card" : absl::StrCat("port ", link.narrowest);
  Finding& width = context.Add(
      "link.width", link.width < link.card_width ? Severity::kFinding : Severity::kOk,
      absl::StrFormat("x%d now, narrowest at %s; every part of the path can do x%d", link.width, where,
                      link.max_width),
      absl::StrFormat("x%d, what %s can do", link.card_width, card.name),
      link.max_width < link.card_width
          ? "the slot or a switch has fewer lanes than the card: use a slot wired to the processor with all "
            "lanes"
          : "reseat the card and its riser, clean the contacts, and look for bifurcation in the firmware");
  width.values = {{"width", link.width}, {"max_width", link.max_width}, {"card_width", link.card_width}};
  const double full = std::min(link.max_speed_gts, link.card_speed_gts);
  const bool slow = link.speed_gts < kSlowClockGts * full;
  Finding& speed =
      context.Add("link.speed", !slow ? Severity::kOk : (busy ? Severity::kFinding : Severity::kNote),
                  absl::StrFormat("%s %s; the path can do %s", device::LinkName(link.speed_gts, link.width),
                                  busy ? "while bytes moved" : "idle (links clock down then)",
                                  device::LinkName(link.max_speed_gts, link.max_width)),
                  device::LinkName(link.card_speed_gts, link.card_width),
                  "set the slot's speed in the firmware to automatic or the highest, and switch link power "
                  "saving (ASPM) off");
  speed.values = {{"speed_gts", link.speed_gts}, {"max_speed_gts", link.max_speed_gts}};
}

struct Measured {
  double pinned = 0.0;
  double pageable = 0.0;
  double blob = 0.0;
};

void JudgeRates(const Measured& rates, double nominal, DoctorContext& context) {
  const double rate = context.pinned ? rates.pinned : rates.pageable;
  const double share = nominal > 0.0 ? rate / nominal : 0.0;
  const bool slow = nominal > 0.0 && share < kGoodShare;
  Finding& link = context.Add(
      "link.rate", nominal <= 0.0 ? Severity::kNote : (slow ? Severity::kFinding : Severity::kOk),
      absl::StrCat(Rate(rate), " from ", context.pinned ? "page-locked" : "pageable", " memory",
                   nominal > 0.0 ? absl::StrFormat(", %.0f %% of nominal", 100.0 * share) : ""),
      nominal > 0.0 ? absl::StrFormat("at least %.0f %% of %s", 100.0 * kGoodShare, Rate(nominal))
                    : "the link's nominal rate is not readable",
      "compare link.width and link.speed; other devices may share the path, or the memory belongs to another "
      "NUMA node (host.numa)");
  link.values = {{"bytes_per_second", rate}, {"nominal_bytes_per_second", nominal}};
  Finding& pageable =
      context.Add("link.pageable", Severity::kOk,
                  absl::StrCat(Rate(rates.pageable),
                               context.pinned ? absl::StrFormat(": %.1f times slower than page-locked",
                                                                rates.pinned / std::max(rates.pageable, 1.0))
                                              : ""),
                  "for comparison");
  pageable.values = {{"bytes_per_second", rates.pageable}};
  const bool small = rates.blob < kGoodBlob * rate;
  Finding& blob = context.Add(
      "link.blob_rate", small ? Severity::kNote : Severity::kOk,
      absl::StrFormat("%s for one expert of %s%s", Rate(rates.blob), base::FormatBytes(context.blob.bytes),
                      context.model.has_value() ? "" : " (a common size: no --model)"),
      absl::StrFormat("at least %.0f %% of large copies", 100.0 * kGoodBlob),
      "experts are small for this link: its latency decides, so that more slots help more than lanes");
  blob.values = {{"bytes_per_second", rates.blob}, {"blob_bytes", static_cast<double>(context.blob.bytes)}};
}

}  // namespace

absl::Status ProbeGpu(DoctorContext& context) {
  const std::vector<device::PciAccelerator> cards = device::FindAccelerators(context.files);
  const device::PciAccelerator* card = FindNvidia(cards);
  const bool wanted = context.engine().device == "cuda";
  const Severity missing = wanted ? Severity::kFailure : Severity::kNote;
  const bool node = context.files.Exists("/dev/nvidiactl");
  if (card == nullptr && !node) {
    context.Add(
        "gpu.present", wanted ? Severity::kFailure : Severity::kOk,
        absl::StrCat("no NVIDIA card on the PCI bus",
                     cards.empty() ? "" : absl::StrCat(" (", cards.size(), " other display devices)")),
        wanted ? "one, for --device cuda" : absl::StrCat("none, for --device ", context.engine().device),
        "check that it is seated and powered, or passed through to this virtual machine (lspci); without "
        "one use --device cpu");
    return absl::OkStatus();
  }
  const std::string name = card == nullptr ? "a card" : absl::StrCat(card->name, " at ", card->address);
  if (!context.files.Exists("/proc/driver/nvidia/version")) {
    context.Add(
        "gpu.present", missing,
        absl::StrCat(name, " is there, but its driver is not loaded",
                     card == nullptr || card->driver.empty() ? "" : absl::StrCat(" (", card->driver, " is)")),
        "the NVIDIA driver", "install or load the driver (nvidia-smi has to list the card)");
  } else if (!node) {
    context.Add("gpu.present", missing,
                absl::StrCat(name, " is there with its driver, but no /dev/nvidiactl is visible here"),
                "device nodes in this container",
                "start the container with the GPU: --gpus all, or a device reservation");
  } else if (!context.device_status.ok()) {
    context.Add("gpu.present", Severity::kFailure,
                absl::StrCat(name, " is there, but: ", std::string(context.device_status.message())),
                "--device cuda works", "use a build with CUDA, and a driver at least as new as it");
  } else {
    context.Add("gpu.present", wanted ? Severity::kOk : Severity::kNote,
                absl::StrCat(name, " is there", wanted ? "" : ", and not used",
                             context.engine().device_reason.empty()
                                 ? ""
                                 : absl::StrCat(" (", context.engine().device_reason, ")")),
                wanted ? "one" : "", "--device cuda uses it");
  }
  return absl::OkStatus();
}

absl::Status ProbeLink(DoctorContext& context) {
  const std::vector<device::PciAccelerator> idle = device::FindAccelerators(context.files);
  if (context.device == nullptr) {
    if (const device::PciAccelerator* card = FindNvidia(idle); card != nullptr) {
      JudgePath(*card, false, context);
    }
    context.Add("link.rate", Severity::kOk,
                context.engine().device == "cpu" ? "device cpu: nothing is copied to a device"
                                                 : "not measured: there is no device to copy to");
    return absl::OkStatus();
  }
  device::Device& device = *context.device;
  absl::StatusOr<std::unique_ptr<LaneBench>> pinned =
      LaneBench::Create(device, device::MemoryKind::kPinned, context.options.copy_bytes);
  const bool wanted = context.engine().page_lock == "on";
  context.pinned = pinned.ok() && wanted;
  if (context.pinned) {
    context.Add("link.pinned", Severity::kOk, "memory can be page-locked", "it can");
  } else if (pinned.ok()) {
    context.Add("link.pinned", Severity::kFailure, "not asked for: --page-lock off",
                "memory that the device may read on its own",
                "leave --page-lock off out: every copy is slow and hides nothing with it");
  } else {
    context.Add(
        "link.pinned", Severity::kFailure, absl::StrCat("refused: ", std::string(pinned.status().message())),
        "memory that the device may read on its own",
        "raise the limit of locked memory (ulimit -l, LimitMEMLOCK=infinity, --ulimit memlock=-1) or of "
        "the cgroup; every copy is slow and hides nothing until then");
  }
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<LaneBench> pageable,
                         LaneBench::Create(device, device::MemoryKind::kHost, context.options.copy_bytes));
  LaneBench& bench = context.pinned ? **pinned : *pageable;
  const auto rate_of = [](double bytes, const LaneTime& time) {
    return time.seconds > 0.0 ? bytes / time.seconds : 0.0;
  };
  const double bytes = static_cast<double>(context.options.copy_bytes) * kCopies;
  Measured rates;
  std::vector<device::PciAccelerator> busy;
  COMOE_ASSIGN_OR_RETURN(const LaneTime large, bench.Copies(context.options.copy_bytes, kCopies, [&] {
    busy = device::FindAccelerators(context.files);
  }));
  COMOE_ASSIGN_OR_RETURN(const LaneTime paged, pageable->Copies(context.options.copy_bytes, kCopies, [] {}));
  const std::size_t blob_bytes = std::min(context.blob.bytes, context.options.copy_bytes);
  COMOE_ASSIGN_OR_RETURN(const LaneTime blob, bench.Copies(blob_bytes, 1, [] {}));
  rates.pinned = context.pinned ? rate_of(bytes, large) : 0.0;
  rates.pageable = rate_of(bytes, paged);
  rates.blob = rate_of(static_cast<double>(blob_bytes), blob);

  const device::PciAccelerator* card = FindNvidia(busy);
  if (card != nullptr) {
    JudgePath(*card, true, context);
  }
  double nominal = 0.0;
  if (device.id().kind == device::DeviceKind::kEmulated) {
    nominal = NominalOfPreset(context.engine().emulated);
  } else if (card != nullptr) {
    const device::PciLink link = device::Narrowest(*card);
    nominal = device::LinkBytesPerSecond(link.card_speed_gts, link.card_width);
  }
  JudgeRates(rates, nominal, context);
  return absl::OkStatus();
}

}  // namespace comoe::cli
