"""CUDA graphs whose memory is paused. The package offers them in mode preload only."""

from saver import *

N = 4096


def captured(tag, **settings):
    """(graph, input, output) of a small network, captured by the package's cuda_graph."""
    with saver.region(tag=tag + " input", enable_cpu_backup=True):
        x = torch.zeros(N, N, device="cuda")
        w = torch.randn(N, N, device="cuda", generator=torch.Generator("cuda").manual_seed(1))

    def network():
        hidden = (x @ w).relu()
        return (hidden * 2 + torch.full((N, N), 0.5, device="cuda")).sum(dim=0)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        network()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag=tag, **settings):
        y = network()
    x.copy_(torch.randn(N, N, device="cuda", generator=torch.Generator("cuda").manual_seed(2)))
    graph.replay()
    torch.cuda.synchronize()
    return graph, x, y


def replays(tag, **settings):
    graph, x, y = captured(tag, **settings)
    before = fingerprint(y)
    freed = 0
    for _ in range(3):
        torch.cuda.empty_cache()
        begin = device_free()
        saver.pause(tag)
        freed = device_free() - begin
        saver.pause(tag + " input")
        saver.resume(tag + " input")
        saver.resume(tag)
        if settings.get("enable_cpu_backup"):
            assert fingerprint(y) == before, "content"
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert fingerprint(y) == before, "the replay after a resume"
    assert freed >= N * N * 4, f"only {freed >> 20} MiB of the graph were freed"
    return f"{freed >> 20} MiB freed"


def with_backup():
    """a graph whose memory has a backup replays after cycles"""
    return replays("graph kept", enable_cpu_backup=True)


def without_backup():
    """a graph whose memory has no backup replays after cycles"""
    return replays("graph lost")


def not_in_mode_torch():
    """cuda_graph is refused by the package"""
    try:
        with saver.cuda_graph(torch.cuda.CUDAGraph()):
            raise RuntimeError("accepted")
    except AssertionError as err:
        assert "preload" in str(err), err


CHECKS = [with_backup, without_backup] if MODE == "preload" else [not_in_mode_torch]
