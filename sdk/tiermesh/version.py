"""Version of this package, which is that of the cluster it was made with."""

VERSION = "0.3.0.dev0"
