# SPDX-License-Identifier: Apache-2.0

"""The version of this package; that of a wheel is written when it is built."""

VERSION = "0.0.0"
