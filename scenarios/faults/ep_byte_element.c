/* ep-byte-element: offsets of what is sent are counted in elements of two bytes, though these have four. */
#include "scenarios/fault.h"

const struct fault fault_ep_byte_element = {
    .name = "ep-byte-element",
    .component = "ep.dispatch",
    .injected = "offsets of what is sent are counted in elements of two bytes, though these have four",
    .visible = "rows meant for one rank are others' rows",
    .checks = "oracle,conservation",
    .source = "NCCL-EP c450c229",
    .scenario = "fault_ep_byte_element.json",
    .signature = "other-row",
    .parts_count = 1,
    .parts = {{"ep.element_bytes", "set", "", 2, AT_EVERYWHERE}},
};
