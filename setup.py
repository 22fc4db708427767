"""Build the kernels in C, the only compiled parts; everything else is in pyproject.toml.

They are optional: without a C compiler the install succeeds, `shardex.kernel` uses its numpy kernel, and
`shardex.media` resizes images with Pillow.
"""

import os
import sys
import sysconfig
from glob import glob

from setuptools import Extension, setup

limited = not sysconfig.get_config_var("Py_GIL_DISABLED")  # free-threaded Python has no limited API yet
sanitize = os.environ.get("SHARDEX_SANITIZE") == "1"

flags: list[str] = []
if sys.platform != "win32":
    flags = ["-O3", "-pthread"]
if sanitize:
    # Python's own flags define signed overflow (-fwrapv); here it is an error to find.
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-wrapv", "-g", "-O1"]

kernels = [
    Extension(
        f"shardex.{room}.{name}",
        [f"src/shardex/{room}/{name}.c"],
        depends=sorted(glob(f"src/shardex/{room}/*.c")),
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if limited else [],
        extra_compile_args=flags,
        extra_link_args=flags,
        libraries=["m"] if sys.platform != "win32" else [],
        py_limited_api=limited,
        optional=not sanitize,  # a sanitizer run without the kernel would prove nothing
    )
    for room, name in [("kernel", "_gather"), ("kernel", "_collect"), ("kernel", "_write_behind"), ("media", "_resize")]
]

setup(ext_modules=kernels, options={"bdist_wheel": {"py_limited_api": "cp311"}} if limited else {})
