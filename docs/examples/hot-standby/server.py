"""A server with sessions in memory, which is restarted and updated with `order: StartFirst` without losing any of them.

A client sends a line with the number of a session, over a connection that it keeps. The server counts the line, and answers
`SESSION COUNT SERVER`, where SERVER is the time at which the answering process was started.

Two processes run side by side while the container is replaced, in containers of one pod with a shared volume. One of them is
the owner: only it changes sessions and answers.

1. A process listens only when it has loaded. Until then the owner serves alone.
2. The sessions are in a file in memory, on the volume. They outlive every process, also one that is killed.
3. The owner holds a lock on the file. The kernel releases it when the process ends, however it ends.
4. The other process accepts connections too, and passes them to the owner through a Unix socket on the volume.
5. On SIGTERM the owner passes all its connections to the other process, and then releases the lock. Clients stay connected.
"""

import array
import fcntl
import mmap
import os
import selectors
import signal
import socket
import struct
import sys
import time

PORT = int(os.environ.get("PORT", "7777"))
STATE = os.environ.get("STATE", "/state")
MODEL = os.environ.get("MODEL", "")
LOAD_SECONDS = float(os.environ.get("LOAD_SECONDS", "0"))

SESSIONS = 4096
MAX_LINE = 64
# How long a process that leaves still accepts the connections whose handshake has begun.
LINGER_SECONDS = 0.5
# Messages between two processes. CLIENT comes with a connection, and with what was received of its next line.
CLIENT, LEAVES = b"c", b"l"
# From linux/socket.h: which of the processes that share a port gets a new connection.
SO_ATTACH_REUSEPORT_CBPF, SO_DETACH_REUSEPORT_BPF = 51, 68

SERVER = f"{time.time():.3f}"
terminated = False


def on_sigterm(*_):
    global terminated
    terminated = True


def load():
    """Stands for what takes a minute. A model that another process has read before comes from the page cache."""
    model = open(MODEL, "rb").read() if MODEL else b""
    end = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < end:
        time.sleep(0.05)
        if terminated:
            sys.exit(0)
    return model


class Sessions:
    """One counter per session, in memory that the processes of the pod share."""

    def __init__(self):
        self.file = os.open(f"{STATE}/sessions", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self.file, SESSIONS * 8)
        self.counts = memoryview(mmap.mmap(self.file, SESSIONS * 8)).cast("Q")

    def lock(self):
        """Returns whether this process is the owner now."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False

    def unlock(self):
        fcntl.flock(self.file, fcntl.LOCK_UN)


class Server:
    def __init__(self):
        self.model = load()
        self.sessions = Sessions()
        self.selector = selectors.DefaultSelector()
        self.clients = {}  # The connections, with what was received of the next line.
        self.is_owner = False
        self.others = []  # Unix connections: the owner's to other processes, or another process's to the owner.
        self.owner_leaves = False
        self.successor = None  # The process to which an owner that leaves passes everything.
        self.join()
        self.listen()

    def watch(self, source, on_input):
        self.selector.register(source, selectors.EVENT_READ, on_input)

    def forget(self, source):
        self.selector.unregister(source)
        source.close()

    def react(self, seconds):
        for key, _ in self.selector.select(seconds):
            key.data(key.fileobj)

    # --- clients ------------------------------------------------------------------------------------------------------

    def listen(self):
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.listener.bind(("", PORT))
        self.listener.listen(1024)
        self.listener.setblocking(False)
        self.watch(self.listener, self.accept)

    def accept(self, listener):
        """Accepts a connection; returns whether there was one."""
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            return False
        self.take(client, b"")
        return True

    def take(self, client, begun):
        """Serves a connection, or passes it to the owner."""
        client.setblocking(False)
        if not self.is_owner and not self.owner_leaves:
            try:
                socket.send_fds(self.others[0], [CLIENT + begun], [client.fileno()])
                client.close()
                return
            except OSError:
                pass  # The owner was killed: the connection stays here until the next one is known.
        self.clients[client] = begun
        if self.is_owner:
            self.watch(client, self.serve)

    def serve(self, client):
        try:
            received = client.recv(4096)
            *lines, begun = (self.clients[client] + received).split(b"\n")
            for session in map(int, lines):
                self.sessions.counts[session] += 1  # Shared before it is answered.
                client.send(f"{session} {self.sessions.counts[session]} {SERVER}\n".encode())
            is_open = received and len(begun) <= MAX_LINE
        except (OSError, ValueError, IndexError):
            is_open = False
        if is_open:
            self.clients[client] = begun
        else:
            del self.clients[client]
            self.forget(client)

    # --- the other process --------------------------------------------------------------------------------------------

    def join(self):
        """Becomes the owner if there is none, and otherwise connects to the owner."""
        path = f"{STATE}/owner.sock"
        while not self.sessions.lock():
            owner = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                owner.connect(path)
            except OSError:  # It has ended meanwhile, or does not listen yet.
                owner.close()
                time.sleep(0.01)
                continue
            self.others, self.owner_leaves = [owner], False
            self.watch(owner, self.hear)
            for client, begun in list(self.clients.items()):
                del self.clients[client]
                self.take(client, begun)
            return
        self.is_owner = True
        if os.path.exists(path):
            os.unlink(path)
        meeting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        meeting.bind(path)
        meeting.listen()
        self.watch(meeting, self.meet)
        for client in self.clients:
            self.watch(client, self.serve)

    def meet(self, meeting):
        other, _ = meeting.accept()
        self.others.append(other)
        self.watch(other, self.hear)

    def hear(self, other):
        try:
            message, files, _, _ = socket.recv_fds(other, 1 + MAX_LINE, 1)
        except OSError:
            message, files = b"", []
        if files:
            self.take(socket.socket(fileno=files[0]), message[1:])
        elif message == LEAVES:
            # From now on connections stay here. The end of this direction tells the owner that none is under way.
            self.owner_leaves = True
            other.shutdown(socket.SHUT_WR)
        elif other is self.successor:
            self.pass_everything()
        else:
            self.others.remove(other)
            self.forget(other)
            self.send_new_connections_to(None)
            if not self.is_owner:
                self.join()

    def pass_everything(self):
        """Passes all clients, and then the sessions, to the successor, and ends."""
        for client, begun in self.clients.items():
            socket.send_fds(self.successor, [CLIENT + begun], [client.fileno()])
        self.sessions.unlock()
        sys.exit(0)

    def send_new_connections_to(self, process):
        """Selects who gets new connections: 0 the process that listened first, 1 the second one, None both."""
        program = array.array("Q", struct.pack("HBBI", 0x06, 0, 0, process or 0))  # BPF: return the number
        option = SO_DETACH_REUSEPORT_BPF if process is None else SO_ATTACH_REUSEPORT_CBPF
        try:
            self.listener.setsockopt(socket.SOL_SOCKET, option, struct.pack("HP", 1, program.buffer_info()[0]))
        except (OSError, AttributeError):
            pass  # Nothing was selected, or this process does not listen yet.

    def leave(self):
        """Accepts what has begun, and leaves clients and sessions to the other process if there is one."""
        if self.others:
            self.send_new_connections_to(1 if self.is_owner else 0)
        end = time.monotonic() + LINGER_SECONDS
        while time.monotonic() < end:
            self.react(0.05)
        while self.accept(self.listener):
            pass
        self.forget(self.listener)
        if self.is_owner and self.others:
            self.successor = self.others[-1]
            self.successor.send(LEAVES)
            while True:
                self.react(None)  # Ends in `pass_everything`.


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    server = Server()
    while not terminated:
        server.react(0.1)
    server.leave()
