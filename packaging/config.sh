#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Prints box.toml as it is installed: with every value commented out. So a host has the defaults of the boxd it
# runs, and a drop-in is held against nothing but what somebody has really set.
set -eu
cd "$(dirname "$0")/.."
# The headers of tables stay, for who takes the # from a key; a language without its keys would be another
# language, so those go too.
sed -e 's/^# Configuration of boxd: every key with its default\.$/# Configuration of boxd: every key with its default, commented out./' \
	-e '/^#/b' -e '/^$/b' -e '/^\[languages\./s/^/#/' -e '/^\[/b' -e 's/^/#/' box.toml
