"""Tags: what is paused and what is not."""

from saver import *


def alone():
    """one tag is paused while another is used"""
    weights = filled(128 * MiB, 1, tag="weights", enable_cpu_backup=True)
    cache = filled(256 * MiB, 2, tag="cache")
    before = fingerprint(weights)
    with parked("cache", cache):
        assert fingerprint(weights) == before
        weights.bitwise_not_()
    weights.bitwise_not_()
    assert fingerprint(weights) == before


def any_order():
    """tags come back in any order"""
    tensors = {tag: filled(64 * MiB, seed, tag=tag, enable_cpu_backup=True) for seed, tag in enumerate("abc")}
    before = {tag: fingerprint(tensor) for tag, tensor in tensors.items()}
    for out, back in (("abc", "abc"), ("abc", "cba"), ("cab", "bca"), ("ba", "ab")):
        for tag in out:
            saver.pause(tag)
        for tag in back:
            saver.resume(tag)
            assert fingerprint(tensors[tag]) == before[tag], (out, back, tag)
    saver.pause("b")
    saver.pause()
    saver.resume("b")
    assert fingerprint(tensors["b"]) == before["b"]
    saver.resume()
    assert {tag: fingerprint(tensor) for tag, tensor in tensors.items()} == before


def recycled():
    """memory of one tag that was freed does not pass to another"""
    gone = filled(64 * MiB, 1, tag="kv cache")
    del gone
    kept = filled(64 * MiB, 2, tag="draft weights", enable_cpu_backup=True)
    before = fingerprint(kept)
    saver.pause("kv cache")
    try:
        assert fingerprint(kept) == before
    finally:
        saver.resume("kv cache")
    assert fingerprint(kept) == before


CHECKS = [alone, any_order, recycled]
