/* cp-buffer-reuse: the send buffer is written before the send is done. */
#include "scenarios/fault.h"

const struct fault fault_cp_buffer_reuse = {
    .name = "cp-buffer-reuse",
    .component = "async",
    .injected = "the send buffer is written before the send is done",
    .visible = "zeros or a newer block arrive",
    .checks = "oracle,race",
    .source = "zhuzilin zigzag recycles its send buffer",
    .scenario = "fault_cp_buffer_reuse.json",
    .signature = "overwritten",
    .parts_count = 1,
    .parts = {{"cp.kv_hop", "reuse-buffer", "", 0, AT_EVERYWHERE}},
};
