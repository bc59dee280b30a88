// SPDX-License-Identifier: Apache-2.0

// What programs do with the network of sandboxes by the SDK of E2B, in a world with two servers, of which one has a name.
import assert from 'node:assert/strict'
import { ALL_TRAFFIC, Sandbox } from 'e2b'

const named = 'allowed.example', address = '11.22.33.44', other = '11.22.33.55'
const reaches = async (sandbox, where) => {
  const { stdout } = await sandbox.commands.run(`exec 3<>/dev/tcp/${where}/80 && read -r line <&3 && echo "$line"; true`)
  return stdout.startsWith('tcp ')
}
const check = async (what, sandbox, want) => {
  const got = {}
  for (const where of [named, address, other]) got[where] = await reaches(sandbox, where)
  assert.deepEqual(got, { [named]: want[0], [address]: want[1], [other]: want[2] }, what)
}

const open = await Sandbox.create()
await check('a sandbox is open', open, [true, true, true])
await open.updateNetwork({ allowOut: [named], denyOut: [ALL_TRAFFIC] })
await check('only to a name', open, [true, true, false]) // whose address it is
await open.updateNetwork({ allowOut: [other + '/32'], denyOut: [ALL_TRAFFIC] })
await check('only to an address', open, [false, false, true])
await open.updateNetwork({ allowInternetAccess: false })
await check('closed', open, [false, false, false])
assert.equal((await open.getInfo()).allowInternetAccess, false)
await open.updateNetwork({ denyOut: [ALL_TRAFFIC] })
await check('closed still', open, [false, false, false])
await open.updateNetwork({})
await check('open again', open, [true, true, true])
assert.equal((await open.getInfo()).allowInternetAccess, true)
await assert.rejects(open.updateNetwork({ denyOut: ['192.0.2.1'] }), /not served by boxd/)

const some = await Sandbox.create({ network: { allowOut: [named], denyOut: [ALL_TRAFFIC] } })
await check('made for a name', some, [true, true, false])
const none = await Sandbox.create({ allowInternetAccess: false })
await check('made closed', none, [false, false, false])
await assert.rejects(none.updateNetwork({ allowOut: [other] , denyOut: [ALL_TRAFFIC] }), /created with/)
for (const sandbox of [open, some, none]) await sandbox.kill()
console.log('done')
