"""Made-up /sys trees: sockets, cores, hardware threads and memory nodes."""

from __future__ import annotations

from pathlib import Path


def tree(
    root: Path, sockets: int, cores: int, *, smt: int = 2, nodes: int = 1, interleaved: bool = False
) -> Path:
    """A /sys of `sockets` x `cores` physical cores with `smt` threads each, `nodes` memory nodes a socket.

    The hardware threads 0, 1, ... are the first ones of all cores, as Intel numbers them; `interleaved`: the
    sockets take turns.
    """
    total = sockets * cores
    by_node: dict[int, list[int]] = {}
    for core in range(total):
        socket = core % sockets if interleaved else core // cores
        within = core // sockets if interleaved else core % cores
        threads = [core + total * thread for thread in range(smt)]
        by_node.setdefault(socket * nodes + within * nodes // cores, []).extend(threads)
        for thread in threads:
            topology = root / "devices/system/cpu" / f"cpu{thread}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(",".join(map(str, threads)) + "\n")
            (topology / "physical_package_id").write_text(f"{socket}\n")
    for node, threads in by_node.items():
        folder = root / "devices/system/node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(",".join(map(str, threads)) + "\n")
    return root
