/* `serve PORT [alone]`: answers each TCP connection with the content of /etc/version. It shares the port with other processes
   (SO_REUSEPORT) unless it is `alone`. On SIGTERM it answers what its accept queue holds, and exits. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

static char answer[256];

static void serve(int listener) {
  char request[1024];
  int client = accept(listener, 0, 0);
  if (client < 0) return;
  if (recv(client, request, sizeof request, 0) > 0) send(client, answer, strlen(answer), MSG_NOSIGNAL);
  close(client);
}

int main(int words, char **word) {
  int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(word[1]))};
  char version[64] = "";
  FILE *file = fopen("/etc/version", "r");
  sigset_t term;
  if (file) fgets(version, sizeof version, file);
  snprintf(answer, sizeof answer, "HTTP/1.0 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", strlen(version), version);
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, 0);
  if (words < 3) setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024)) {
    perror("serve");
    return 1;
  }
  struct pollfd of[] = {{listener, POLLIN, 0}, {signalfd(-1, &term, 0), POLLIN, 0}};
  while (poll(of, 2, -1) > 0 || errno == EINTR) {
    if (of[0].revents) serve(listener);
    else if (of[1].revents) break;
  }
  while (poll(of, 1, 0) > 0) serve(listener);
  return 0;
}
