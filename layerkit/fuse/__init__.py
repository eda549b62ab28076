"""The host side: data files, populate, frontends, mounts, hostd. Never imports the compiler."""
