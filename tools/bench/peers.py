#!/usr/bin/python3
"""PyTorch's figures beside ours, where python3-torch is installed: peers.py BUILD

fp32 matrix products on one thread, and an all-reduce of gloo among processes beside ours among the ranks of one
process. Each pair is measured in turn, several rounds; what is printed is the median of PyTorch's time over ours."""
import os
import statistics
import subprocess
import sys
import time

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError:
    print("peers: python3-torch is not installed; nothing to compare with")
    sys.exit(0)

SIZES = (16, 64, 127, 128, 256, 512, 1024)
ROUNDS = 5
RANKS = 4
ELEMENTS = (1, 1021, 65537, 1048573)


def torch_gflops(n):
    a, b, out = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
    times = max(1, int(2e7 / n**3))
    best = 1e9
    for _ in range(5):
        start = time.thread_time()
        for _ in range(times):
            torch.mm(a, b, out=out)
        best = min(best, (time.thread_time() - start) / times)
    return 2e-9 * n**3 / best


def our_gflops(build):
    text = subprocess.run([f"{build}/tools/bench/bench_gemm", "--ours", *map(str, SIZES)], check=True,
                          capture_output=True, text=True).stdout
    return {int(line.split()[0]): float(line.split()[1]) for line in text.splitlines()}


def repeats(count):
    return 200 if count < 10000 else 20


def gloo_worker(rank, port, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for count in ELEMENTS:
        buffer = torch.zeros(count)
        for _ in range(2):
            dist.all_reduce(buffer)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repeats(count)):
            dist.all_reduce(buffer)
        if rank == 0:
            queue.put((count, 1e6 * (time.perf_counter() - start) / repeats(count)))
    dist.destroy_process_group()


def gloo_us(port):
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=gloo_worker, args=(rank, port, queue)) for rank in range(RANKS)]
    for worker in workers:
        worker.start()
    result = dict(queue.get(timeout=120) for _ in ELEMENTS)
    for worker in workers:
        worker.join()
    return result


def our_us(build, count):
    command = [f"{build}/tools/bench/bench_all_reduce", str(RANKS), str(count), str(repeats(count))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    build = sys.argv[1]
    torch.set_num_threads(1)
    blas = [word for word in torch.__config__.show().replace(",", "\n").split("\n") if "BLAS_INFO" in word]
    print(f"PyTorch {torch.__version__} ({' '.join(blas).strip()}), {os.cpu_count()} cores; its time over ours, "
          f"median of {ROUNDS} rounds")
    ratios = {n: [] for n in SIZES}
    for _ in range(ROUNDS):
        ours = our_gflops(build)
        for n in SIZES:
            ratios[n].append(ours[n] / torch_gflops(n))
    print("  fp32 matrix product, one thread")
    for n in SIZES:
        print(f"  {n:9d} {statistics.median(ratios[n]):8.2f}")
    reduce_ratios = {count: [] for count in ELEMENTS}
    for turn in range(ROUNDS):
        gloo = gloo_us(29500 + os.getpid() % 1000 + turn)
        for count in ELEMENTS:
            reduce_ratios[count].append((gloo[count] / our_us(build, count), gloo[count]))
    print(f"  all-reduce of fp32 among {RANKS}: gloo's processes / our ranks on one thread")
    for count in ELEMENTS:
        ratio, gloo = (statistics.median(column) for column in zip(*reduce_ratios[count]))
        print(f"  {count:9d} {ratio:8.2f}   (gloo {gloo:.0f} us)")


if __name__ == "__main__":
    main()
