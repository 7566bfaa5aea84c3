/* cp-documents-ignored: the kernel is not given the documents' borders. */
#include "scenarios/fault.h"

const struct fault fault_cp_documents_ignored = {
    .name = "cp-documents-ignored",
    .component = "cp.mask",
    .injected = "the kernel is not given the documents' borders",
    .visible = "tokens see other documents",
    .checks = "oracle,influence",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_documents_ignored.json",
    .signature = "leaks",
    .parts_count = 1,
    .parts = {{"cp.documents_passed", "never", "", 0, AT_EVERYWHERE}},
};
