// SPDX-License-Identifier: Apache-2.0

// Package protocol is LangBot's protocol: its messages, their fields, what of JSON it takes for them.
package protocol
