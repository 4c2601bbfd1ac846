"""One failing case in one file that runs anywhere: inputs, launch records and images of both parties, the verdict.

A bundle is a zip of stored (not compressed) members: `bundle.json`, and a record folder (`equiv.emulator.record`) with
`captures/`, `images/` and `blobs/`. It is data: opening one (`archive`, `contents`) checks names, sizes and every field
and executes nothing; its kernels run only when `rerun` is asked to, in the emulator or on a GPU.
"""
