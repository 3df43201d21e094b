"""Writes the pickles that pickle_test.go reads: the same value in every protocol. Run in this folder with Python 3.8+."""
import collections
import pickle

shared = ["twice"]
value = {
    "none": None, "true": True, "false": False,
    "ints": [0, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**63, -(2**70)],
    "floats": [0.0, -0.5, 1e300, float("inf")],
    "str": "héllo \n \\ 日本 🙂", "long": "x" * 300, "bytes": b"\x00\xff\n", "empty": b"", "bytearray": bytearray(b"ab"),
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "nested": {"list": [[], {}, [[]]], 7: "seven", b"k": "bytes key"},
    "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    "shared": [shared, shared],
}
for protocol in range(6):
    v = dict(value)
    if protocol < 5:
        del v["bytearray"]  # pickled as a call of bytearray() before protocol 5
    with open(f"protocol{protocol}.pkl", "wb") as f:
        pickle.dump(v, f, protocol=protocol)

chars = sorted(set("hello world\n"))
meta = {"vocab_size": len(chars), "itos": dict(enumerate(chars)), "stoi": {c: i for i, c in enumerate(chars)}}
with open("meta.pkl", "wb") as f:
    pickle.dump(meta, f, protocol=4)
