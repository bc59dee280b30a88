# SPDX-License-Identifier: Apache-2.0

"""Hears what happens in a session, and goes on after the last event that was heard."""

from boxd import Client

client = Client()
with client.create_session() as session:
    session.exec("true")
    with client.events(session=session.id) as events:
        for event in events:
            print(event.type)
            if event.type == "exec.started":
                break

    with client.events(session=session.id, after=events.last_id) as events:
        print(next(events).type)
