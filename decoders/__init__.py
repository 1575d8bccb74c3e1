"""The built-in decoders, one file each. They import only `chatserve.decoding`, as a stranger's would."""
